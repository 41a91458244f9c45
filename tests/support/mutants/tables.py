"""Defects of the values of cells, and of the tables that show them."""

from support.mutants.mutant import Mutant

UNSURE = "unit/test_report_unsure.py"
MUTANTS = (
    Mutant(
        "a turn of one conversation is the value of its cell",
        "analysis.independent.independent",
        "single or metric.by_request",
        "True",
        (f"{UNSURE}::test_a_turn_that_one_conversation_has_is_no_value_of_the_cell",),
    ),
    Mutant(
        "generations count alike, whatever their size",
        "Metric.weight_of",
        "return 1.0 if self.weight is None else self.weight(repeat)",
        "return 1.0",
        (f"{UNSURE}::test_generations_of_unequal_size_count_by_their_requests_and_seconds",),
    ),
    Mutant(
        "a mean over requests is one of generations",
        "Metric.weight_of",
        "return float(len(self.by_request(repeat)))",
        "return 1.0",
        (f"{UNSURE}::test_generations_of_unequal_size_count_by_their_requests_and_seconds",),
    ),
    Mutant(
        "a quantized cell gets the pass@k of another",
        "PassAtK.differences",
        "names = ['target', 'lora', 'family', 'quantization']",
        "names = ['target', 'lora', 'family']",
        ("unit/test_table_evaluation.py::test_a_figure_goes_to_no_cell_that_decodes_otherwise",),
    ),
    Mutant(
        "the speed-up at the end of a run is over any autoregressive cell",
        "experiments.plain.fastest_plain",
        "min(found, key=lambda one: found[one])",
        "max(found, key=lambda one: found[one])",
        ("unit/test_ablate_plain.py", "unit/test_speedups.py"),
    ),
    Mutant(
        "a category called all is that of all prompts",
        "report.table_rows.part_of",
        "category is None",
        "category in (None, 'all')",
        ("unit/test_report_categories.py::test_a_category_may_be_called_all",),
    ),
    Mutant(
        "a table takes an evaluation that is not finished",
        "read_evaluations",
        "not inside(folder, SUMMARY).exists()",
        "False",
        (
            "unit/test_table_evaluation.py::test_an_unfinished_evaluation_and_two_of_a_cell_are_refused",
        ),
    ),
    Mutant(
        "the noise of processors counts where a GPU decodes",
        "noise._calibrations",
        "of_gpu or known",
        "known",
        ("unit/test_ablate_turns.py::test_on_a_gpu_its_own_calibrations_count_alone",),
    ),
)
