"""Defects of requests and of texts."""

from support.mutants.killers import ENDED, PARTS, REPEATED, STOPPED
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a parameter that is no strategy keeps the text of a command line",
        "resolve._argument",
        "typed(value, one.hint)",
        "value",
        ("unit/test_registry.py::test_the_ways_to_say_one_strategy",),
    ),
    Mutant(
        "a stop string is found when its text is certain",
        "Transcript.push",
        "self._stream.ending(self._search.most_broken)",
        "''",
        (STOPPED,),
    ),
    Mutant(
        "tokens after the one that completes a stop string belong to the completion",
        "Transcript.push",
        "(count, piece)",
        "(len(tokens), piece)",
        (STOPPED,),
    ),
    Mutant(
        "what may be the beginning of a stop string is shown",
        "Transcript.push",
        "self._length_held - self._search.begun",
        "self._length_held",
        (STOPPED,),
    ),
    Mutant(
        "a stop string that ends in another's beginning is not found",
        "StopStrings._next",
        "child.longest or known.longest",
        "child.longest",
        (STOPPED,),
    ),
    Mutant(
        "a text ends before the last stop string in it",
        "StopStrings.read",
        "end - state.longest < first",
        "end - state.longest > first",
        (STOPPED,),
    ),
    Mutant(
        "a broken run of bytes keeps its first characters",
        "_ByteRun.text",
        ("if not self.last:\n    return self.characters"),
        ("if self.characters:\n    return self.characters"),
        (STOPPED,),
    ),
    Mutant(
        "broken bytes are certain up to any token",
        "TextStream._settled",
        "text.startswith(begun) and len(begun) < len(text)",
        "begun",
        (PARTS,),
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
