"""Defects of requests and of texts."""

from support.mutants.killers import REPEATED, STOPPED
from support.mutants.mutant import Mutant

MUTANTS = (
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
)
