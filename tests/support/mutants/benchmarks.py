"""Defects of `bass bench` and of random weights."""

from support.mutants.mutant import Mutant

COMMAND, FIGURES, DUMMY = (
    "unit/test_bench.py",
    "unit/test_bench_figures.py",
    "models/test_dummy.py",
)
IMPOSED = f"{FIGURES}::test_imposed_acceptance_gives_the_expected_tau_to_bound_and_step"
MUTANTS = (
    Mutant(
        "the wall time is that of the steps on the device",
        "Bench.call",
        "wall - prefilled",
        "sum(s.seconds for s in steps)",
        (f"{FIGURES}::test_wall_time_leaves_nothing_out",),
    ),
    Mutant(
        "the wall time includes the prefill",
        "Bench.call",
        "wall - prefilled",
        "wall",
        (f"{FIGURES}::test_the_prefill_is_no_part_of_the_wall_time",),
    ),
    Mutant(
        "the bound follows the tau of the run where another is expected",
        "figures_of",
        "step / (known or tau) * 1000.0",
        "step / tau * 1000.0",
        (IMPOSED,),
    ),
    Mutant(
        "the draft of a step counts once in the bound",
        "figures.bound",
        "(target_bytes + k * draft_bytes) / bandwidth",
        "(target_bytes + draft_bytes) / bandwidth",
        (IMPOSED,),
    ),
    Mutant(
        "a drafter that may propose less has an expected tau",
        "run.constant_length",
        "isinstance(parts.drafter, ModelDraft | SelfDraft) and parts.stop_rule is None",
        "parts.stop_rule is None",
        (f"{COMMAND}::test_any_drafter",),
    ),
    Mutant(
        "a benchmark with other options is continued",
        "BenchRecord.opened",
        "found.about.get(name) != about.get(name)",
        "name not in about",
        (f"{COMMAND}::test_a_repeated_command_continues",),
    ),
    Mutant(
        "the weights of an offset norm are 1, so that it doubles",
        "RandomWeights.__call__",
        "own.endswith('bias') or stores_distance(module)",
        "own.endswith('bias')",
        (f"{DUMMY}::test_random_weights_keep_the_scale_of_the_residual_stream",),
    ),
    Mutant(
        "random weights use the global generator",
        "RandomWeights.__call__",
        "parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=self.generator)",
        "parameter.normal_(0, parameter.shape[-1] ** -0.5)",
        (f"{DUMMY}::test_random_weights_are_those_of_the_seed_whatever_was_drawn_before",),
    ),
)
