"""Defects of metrics, of intervals and comparisons, and of what a run compares and resumes."""

from support.mutants.mutant import Mutant

METRICS, STATISTICS = "unit/test_metrics.py", "unit/test_statistics.py"
BY_HAND = (f"{METRICS}::test_a_call_by_hand",)
MUTANTS = (
    Mutant(
        "a draft beyond the end of its sequence counts as judged",
        "Measurement.rows",
        "flat['accepted'].where(flat['emitted'] == flat['accepted'], flat['drafted'])",
        "flat['drafted']",
        BY_HAND,
    ),
    Mutant(
        "the rejected token was not reached",
        "Measurement.counts",
        "rows['accepted'] + 1",
        "rows['accepted']",
        (f"{METRICS}::test_rates_times_their_denominators_are_the_accepted_tokens",),
    ),
    Mutant(
        "tau leaves the bonus out",
        "metrics.tau",
        "m.counts.emitted",
        "m.counts.accepted",
        (f"{METRICS}::test_without_cuts_tau_is_one_more_than_accepted_per_row_step",),
    ),
    Mutant(
        "the acceptance of a token is that of a draft",
        "metrics.token_acceptance_rate",
        "m.counts.reached",
        "m.counts.drafted",
        BY_HAND,
    ),
    Mutant(
        "the first to finish is the last",
        "metrics.first",
        "m.rates.groupby(level=[0, 1]).first()",
        "m.rates.groupby(level=[0, 1]).last()",
        BY_HAND,
    ),
    Mutant(
        "idle rows waste no positions",
        "metrics.padding_waste",
        "sum(request >= 0 for request in row)",
        "len(row)",
        BY_HAND,
    ),
    Mutant(
        "the tokens of a step arrive apart",
        "metrics._itl",
        "np.diff(np.unique(t))",
        "np.diff(t)",
        BY_HAND,
    ),
    Mutant(
        "tokens per second leave prefills out",
        "metrics.tokens_per_second",
        "float(m.call_seconds.sum())",
        "_stepping(m)",
        BY_HAND,
    ),
    Mutant(
        "a request within one limit is within all",
        "metrics.goodput",
        "all",
        "any",
        (
            f"{METRICS}::test_goodput_is_every_request_without_a_limit_that_binds_and_none_below_the_fastest",
        ),
    ),
    Mutant(
        "the predicted speed-up leaves the bonus out",
        "metrics.predicted_speedup",
        "range(int(length) + 1)",
        "range(int(length))",
        (f"{METRICS}::test_with_equal_lengths_the_prediction_is_the_formula",),
    ),
    Mutant(
        "a request that the time budget cut differs",
        "metrics._divergences",
        "shared if (row.finished_x if len(own) < len(other) else row.finished_y) else None",
        "shared",
        (
            f"{METRICS}::test_a_sequence_that_ends_early_parts_where_it_ends_unless_the_budget_ended_it",
        ),
    ),
    Mutant(
        "acceptance has a value per repeat",
        "metrics.independent",
        "'prompt' if metric.over == 'prompts' else 'repeat'",
        "'repeat'",
        (f"{METRICS}::test_acceptance_has_a_value_per_prompt_and_time_one_per_repeat",),
    ),
    Mutant(
        "Fieller's interval leaves the covariance out",
        "statistics._fieller",
        "x.mean() * y.mean() - xy",
        "x.mean() * y.mean()",
        (
            f"{STATISTICS}::test_the_interval_of_a_ratio_holds_1_if_and_only_if_the_test_does_not_reject",
        ),
    ),
    Mutant(
        "the deviation of paired differences is that of a whole population",
        "statistics.compare",
        "difference.std(ddof=1)",
        "difference.std()",
        (f"{STATISTICS}::test_p_is_that_of_the_paired_t_test",),
    ),
    Mutant(
        "Holm's p-values may fall",
        "statistics.holm",
        "np.maximum.accumulate(np.minimum(1.0, left * p[order]))",
        "np.minimum(1.0, left * p[order])",
        (f"{STATISTICS}::test_holm_adjusts_as_by_hand",),
    ),
    Mutant(
        "a speed-up by latency is that of its inverse",
        "metrics.speedup",
        "METRICS[name].better == 'lower'",
        "False",
        (
            "unit/test_frames.py::test_a_cell_is_compared_with_the_fastest_autoregressive_one_of_its_work",
        ),
    ),
    Mutant(
        "a cell is compared with the slowest autoregressive decoding",
        "analysis.frames.Run.plains",
        "min",
        "max",
        ("unit/test_frames.py::test_of_two_autoregressive_cells_the_fastest_is_compared_with",),
    ),
    Mutant(
        "a cell is compared with autoregressive decoding at another batch",
        "runner.work_of",
        "(*SAMPLING, 'batch', 'samples', 'queue', 'rate', 'lengths')",
        "(*SAMPLING, 'samples')",
        ("unit/test_grid.py::test_work_is_what_compared_cells_share",),
    ),
    Mutant(
        "lines of a repeat that did not end are kept",
        "cell.keep_lines",
        "ended(json.loads(one))",
        "True",
        ("unit/test_runner.py::test_lines_of_a_repeat_that_did_not_end_are_removed",),
    ),
    Mutant(
        "pass@k draws with replacement",
        "pass_at_k.pass_at_k",
        "1.0 - math.comb(samples - passed, k) / math.comb(samples, k)",
        "1.0 - (1 - passed / samples) ** k",
        (
            "unit/test_pass_at_k.py::test_pass_at_k_is_the_share_of_all_choices_of_k_samples_in_which_one_passes",
        ),
    ),
    Mutant(
        "samples count that were cut off by the time budget",
        "Evaluation.within",
        "found['finished'] & (found[clock] <= seconds)",
        "found[clock] <= seconds",
        ("unit/test_pass_at_k.py::test_first_is_the_most_probable_finished_sample_and_all_is_any",),
    ),
)
