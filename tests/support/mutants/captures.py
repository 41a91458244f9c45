"""Defects of the shapes that are captured as graphs, and of the storage that they share."""

from support.mutants.mutant import Mutant

ENGINES = "unit/test_engines.py"
VERSIONS = "kernels/test_kernel_versions.py"
PREFILL = "unit/test_prefill.py"
MUTANTS = (
    Mutant(
        "a step with longer drafts than its graph",
        "StepShapes.draft_length",
        "bisect_left(self.lengths, k)",
        "bisect_left(self.lengths, k - 1)",
        (f"{ENGINES}::test_a_step_in_a_longer_shape_emits_the_same_tokens",),
    ),
    Mutant(
        "the shapes of the longest rows are not captured in advance",
        "StepShapes.needed",
        "(lengths.start, lengths.stop - 1)",
        "(lengths.start, lengths.stop // 2)",
        (f"{ENGINES}::test_the_shapes_of_a_range_are_those_of_its_steps",),
    ),
    Mutant(
        "one part of a drafter is captured",
        "StepShapes.needed",
        "range(self.drafters if k else 1)",
        "range(1)",
        (f"{ENGINES}::test_the_shapes_of_a_range_are_those_of_its_steps",),
    ),
    Mutant(
        "a part of a drafter is captured that has not run",
        "GraphedStep._capture",
        "shape._replace(span=0)",
        "shape._replace(span=0, part=0)",
        ("unit/test_graphs.py",),
    ),
    Mutant(
        "the graphs of another part feed a drafter",
        "GraphedStep.catch_up",
        "self.prefills.drafters[drafter]",
        "self.prefills.drafters[0]",
        (f"{PREFILL}::test_a_users_drafter_or_cache_is_fed_without_graphs",),
    ),
    Mutant(
        "two calls at once share the kept storage",
        "EngineCache.reserve",
        "storage.status.over",
        "True",
        (f"{ENGINES}::test_a_call_while_another_is_under_way_has_storage_of_its_own",),
    ),
    Mutant(
        "each call on a CPU records its passes anew",
        "Storage._kept",
        "(place, batch) not in self._scorers",
        "True",
        (
            "unit/test_recorded_engines.py::test_later_calls_record_nothing_and_emit_the_tokens_of_a_fresh_pair",
        ),
    ),
    Mutant(
        "passes that were recorded with other weights are replayed",
        "EngineCache.reserve",
        "self._records and storage.weights != addresses",
        "False",
        ("unit/test_recorded_engines.py::test_replaced_weights_are_read_by_the_next_call",),
    ),
    Mutant(
        "two calls at a time share storage on a CPU",
        "EngineCache.run",
        "kept.status = status",
        "pass",
        ("unit/test_recorded_engines.py::test_threads_and_open_streams_do_not_share_storage",),
    ),
    Mutant(
        "storage in which a run failed is used again",
        "EngineCache.reserve",
        "storage.status.failed",
        "False",
        (f"{ENGINES}::test_storage_in_which_a_run_failed_is_not_used_again",),
    ),
    Mutant(
        "attention is compiled again for rows from an odd one on",
        "triton.attention._attend",
        '["place"]',
        "[]",
        (f"{VERSIONS}::test_a_warm_up_launches_every_version_of_a_kernel_that_prefills_launch",),
    ),
    Mutant(
        "a warm-up for calls feeds no windows",
        "warm_up.first_prefills",
        "fill()",
        "pass",
        (f"{ENGINES}::test_a_warm_up_feeds_windows_without_graphs_if_the_drafter_is_a_users",),
    ),
    Mutant(
        "the last window of a long prompt is what is left",
        "prefill.equal_windows",
        "-(-tokens // -(-tokens // most)) if tokens else most",
        "most",
        (f"{VERSIONS}::test_a_long_prompt_is_fed_in_windows_of_nearly_one_size",),
    ),
    Mutant(
        "graphs feed prompts to the first rows",
        "prefill.in_segments",
        "rows[at], found[:, at, : stop - start] = row, fed",
        "rows[at], found[:, at, : stop - start] = 0, fed",
        (f"{PREFILL}::test_graphs_feed_what_windows_feed",),
    ),
    Mutant(
        "graphs feed the first part of a prompt again",
        "prefill.SegmentGraphs.feed",
        "tokens.split(sizes, 1)",
        "[tokens[:, :size] for size in sizes]",
        (f"{PREFILL}::test_graphs_feed_what_windows_feed",),
    ),
    Mutant(
        "a user's drafter is fed by graphs",
        "Storage.prefills",
        "not (selects(context.target) and is_ours(self.parts.drafter))",
        "not selects(context.target)",
        (f"{PREFILL}::test_a_users_drafter_and_cache_have_no_graphs_of_prefills",),
    ),
    Mutant(
        "a row that has several segments begins with the state of any of them",
        "LastStates.observe",
        "best = torch.where(rows[:, None] == rows, last, -2).argmax(1)",
        "best = torch.arange(len(rows), device=rows.device).flip(0)",
        (f"{PREFILL}::test_of_several_segments_the_last_token_counts",),
    ),
)
