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
        "a draft is cut by the lengths that its drafter was given",
        "SpeculativeStep.proposed",
        "self.drafter.propose(sequences, requested, k, Noise(*given), span)",
        "self.drafter.propose(sequences, lengths, k, Noise(*given), span)",
        (DRAFTER,),
    ),
    Mutant(
        "a drafter has the uniforms that the verifier reads",
        "SpeculativeStep.proposed",
        "Noise(*given)",
        "noise",
        (DRAFTER,),
    ),
    Mutant(
        "a part of an ensemble has the lengths that cut its draft",
        "EnsembleDrafter.propose",
        "requested.clone()",
        "requested",
        (f"{WRITES}::test_a_part_of_an_ensemble_that_writes_to_its_lengths",),
    ),
    Mutant(
        "the parts of an ensemble share what they are given",
        "EnsembleDrafter.with_copies",
        "yield drafter, copied(value)",
        "yield drafter, value",
        (
            f"{WRITES}::test_a_part_of_an_ensemble_that_writes_to_all_that_it_is_given",
            f"{WRITES}::test_what_a_part_of_an_ensemble_is_given_is_not_what_another_one_wrote",
        ),
    ),
    Mutant(
        "the parts of an ensemble share what they observe",
        "EnsembleDrafter.observe",
        "own if place == len(observing) else copied(own)",
        "own",
        (f"{WRITES}::test_what_a_part_of_an_ensemble_is_given_is_not_what_another_one_wrote",),
    ),
    Mutant(
        "a recording holds the feedback that its policy may write to",
        "Recorded.update",
        "deepcopy(feedback)",
        "feedback",
        (f"{WRITES}::test_a_recorded_policy_that_writes_to_its_feedback",),
    ),
    Mutant(
        "strategies have the keys and lengths of the rows themselves",
        "engine.step.copies",
        "[p.view(t.dtype).view(t.shape) for p, t in zip(parts, tensors, strict=True)]",
        "list(tensors)",
        (VERIFIER, DRAFTER),
    ),
    Mutant(
        "a verifier has the draft that is reported",
        "SpeculativeStep.judged",
        "Draft(tokens, draft.probs, lengths)",
        "draft",
        (VERIFIER,),
    ),
    Mutant(
        "a drafter has the target's assignment of rows",
        "Slots.admit",
        "RowAssignment(self.capacities.copy(), source.copy(), shared.copy())",
        "RowAssignment(self.capacities, source, shared)",
        (DRAFTER,),
    ),
    Mutant(
        "the kit overlooks a draft that writes to the rows",
        "properties_of_drafters.CheckedDrafter.propose",
        "[*vars(sequences).values(), lengths, *vars(noise).values()]",
        "[lengths, *vars(noise).values()]",
        (ROWS,),
    ),
)
