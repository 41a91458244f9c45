"""Defects of what strategies are given: without copies, one that writes into it changes the run."""

from support.mutants.mutant import Mutant

WRITES = "unit/test_strategies_that_write.py"
DRAFTER, VERIFIER = (
    f"{WRITES}::test_a_{name}"
    for name in (
        "drafter_that_writes_to_lengths_and_assignments",
        "verifier_that_writes_to_its_draft_and_its_noise",
    )
)
ROWS = f"{WRITES}::test_the_kit_reports_a_drafter_that_writes_to_the_rows_of_the_run"

MUTANTS = (
    Mutant(
        "a part of an ensemble has the lengths that cut its draft",
        "EnsembleDrafter.propose",
        "requested.clone() if drafter.writes_inputs else requested",
        "requested",
        (f"{WRITES}::test_a_part_of_an_ensemble_that_writes_to_its_lengths",),
    ),
    Mutant(
        "a recording holds the feedback that its policy may write to",
        "Recorded.update",
        "deepcopy(feedback)",
        "feedback",
        (f"{WRITES}::test_a_recorded_policy_that_writes_to_its_feedback",),
    ),
    Mutant(
        "the kit overlooks a draft that writes to the rows",
        "properties_of_drafters.CheckedDrafter.propose",
        "self.unchanged(LEAVES, sequences, lengths, noise)",
        "self.unchanged(LEAVES, lengths, noise)",
        (ROWS,),
    ),
    Mutant(
        "the kit overlooks a drafter that writes to the rows later",
        "properties_of_drafters.CheckedDrafter.rows_unchanged",
        "self.unchanged(LATER, *self.received)",
        "self.unchanged(LATER)",
        (ROWS,),
    ),
)
