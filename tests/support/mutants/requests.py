"""Defects of requests and of texts."""

from support.mutants.killers import ENDED, PARTS, REPEATED, STOPPED
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a stop string is found when its text is certain",
        "Transcript.push",
        "certain + self._stream.ending()",
        "certain",
        (STOPPED,),
    ),
    Mutant(
        "tokens after the one that completes a stop string belong to the completion",
        "Transcript.push",
        "(count, self._give(''.join((*pieces, text[:end]))))",
        "(len(tokens), self._give(''.join((*pieces, text[:end]))))",
        (STOPPED,),
    ),
    Mutant(
        "what may be the beginning of a stop string is shown",
        "Transcript.push",
        "len(certain) - self._stops.begun(certain)",
        "len(certain)",
        (STOPPED,),
    ),
    Mutant(
        "only the shortest beginning of a stop string is held back",
        "StopStrings.begun",
        "max",
        "min",
        (STOPPED,),
    ),
    Mutant(
        "a text ends before the last stop string in it",
        "StopStrings.first",
        "min(found, default=None)",
        "max(found, default=None)",
        (STOPPED,),
    ),
    Mutant(
        "a run of bytes is shown before its end",
        "TextStream.push",
        "self._window[end - 1] in self.tokenizer.bytes",
        "False",
        ("unit/test_text.py::test_a_run_of_bytes_is_shown_when_it_has_ended",),
    ),
    Mutant(
        "broken bytes are certain up to any token",
        "TextStream.push",
        "whole.startswith(begun) and len(begun) < len(whole)",
        "bool(begun)",
        (PARTS,),
    ),
    Mutant(
        "the mark of a continued message stays where a template uses the message before",
        "conversation._unmarked",
        "begun = re.sub(f'{mark} |\\\\s*{mark}(?! )', '', begun)",
        "",
        ("unit/test_chat.py::test_a_last_message_is_continued_without_marks",),
    ),
    Mutant(
        "a parameter that is no strategy keeps the text of a command line",
        "resolve._argument",
        "typed(value, one.hint)",
        "value",
        ("unit/test_registry.py::test_the_ways_to_say_one_strategy",),
    ),
    Mutant(
        "a repeated prompt has its first samples again",
        "requests_for",
        "first_sample + seen[tuple(prompt)]",
        "first_sample",
        (REPEATED,),
    ),
    Mutant(
        "what a batch-wide drafter learned reaches the next call",
        "EngineCache.__init__",
        "graphs and parts.drafter.batch_invariant",
        "graphs",
        (
            "unit/test_engines.py::test_what_a_batch_wide_drafter_learned_does_not_reach_the_next_call",
        ),
    ),
    Mutant(
        "a closed generation is out of time",
        "Generation.result",
        'sample.reason or "interrupted"',
        'sample.reason or ("time" if self.run.time_budget else "interrupted")',
        (ENDED,),
    ),
    Mutant(
        "a time budget ends a sample without the text that was held back",
        "Generation._out_of_time",
        "sample.transcript.finish()",
        '""',
        (
            "unit/test_generation.py::test_the_last_events_of_a_time_budget_have_the_text_that_was_held_back",
        ),
    ),
)
