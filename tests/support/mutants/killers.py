"""The tests that kill mutants, by short names: files, or tests of a file, relative to tests/."""

ENUMERATION = "laws/test_0_enumeration.py"
GREEDY = "laws/test_1_greedy.py"
MATRIX = f"{GREEDY}::test_a_target_that_hashes_its_whole_memory_emits_the_oracles_tokens"
LAYOUTS = (
    f"{GREEDY}::test_every_layout_backend_policy_drafter_and_verifier_emits_the_oracles_tokens"
)
WITNESS = f"{GREEDY}::test_every_query_finds_its_rows_committed_tokens_and_no_others"
WRONG = f"{GREEDY}::test_a_drafter_that_is_always_wrong_gives_plain_decoding_one_token_a_step"
TWO_ROWS = (
    f"{GREEDY}::test_a_row_that_rejects_all_and_a_row_that_accepts_all_do_not_disturb_each_other"
)
EQUAL = f"{GREEDY}::test_a_draft_equal_to_the_target_is_always_accepted"
EOS = f"{GREEDY}::test_an_end_of_sequence_within_an_accepted_draft_ends_that_row_there"
PAD_EOS = (
    f"{GREEDY}::test_an_end_of_sequence_token_that_is_also_padding_ends_only_where_it_is_emitted"
)
LIMIT = f"{GREEDY}::test_a_row_at_its_limit_neither_stops_nor_truncates_nor_shortens_the_others"
ACCOUNT = f"{GREEDY}::test_the_account_of_drafted_and_accepted_tokens_adds_up_to_the_committed_ones"
STOPS = f"{GREEDY}::test_a_stop_rule_ends_a_draft_right_after_the_token_at_which_it_fires"
LOGPROBS = f"{GREEDY}::test_log_probabilities_are_the_targets_own"
SHARED = f"{GREEDY}::test_samples_of_one_prompt_share_one_prefill_and_still_agree_with_the_oracle"
INVARIANCE = "laws/test_2_invariance.py"
ALONE = f"{INVARIANCE}::test_a_request_alone_and_in_any_batch_gives_the_same_tokens_and_acceptance"
QUEUED = f"{INVARIANCE}::test_a_request_gives_the_same_tokens_alone_and_from_any_queue"
WAITING = "unit/test_queue.py::test_samples_of_a_prompt_that_a_step_feeds_wait_for_it"
JOINT = "laws/test_4_joint_law.py"
REGISTERED = "unit/test_testing_registered.py::test_every_drafter_is_exact"
LOSSES = f"{JOINT}::test_the_joint_law_is_the_targets_under_every_policy_drafter_and_verifier"
ONE_SEED = "laws/test_6_coupled.py"
WARPS = f"{JOINT}::test_the_joint_law_of_three_tokens_is_the_targets"
REJECTED = f"{JOINT}::test_no_step_draws_with_the_noise_of_rejected_tokens"
STEPS = f"{JOINT}::test_consecutive_steps_share_no_noise"
NOISE, SAMPLING, POLICIES, RECORDS, CACHES, ATTENTION = (
    f"unit/test_{name}.py"
    for name in ("noise", "sampling", "policies", "records", "caches", "attention")
)
VECTORS = "unit/test_verifiers_vectors.py"

ROOM, TAKES, NOBODY, OUTLIVE = (
    f"unit/test_paged.py::test_{law}"
    for law in (
        "requests_of_any_prompts_that_end_in_any_order_fit_their_room_and_keep_their_own_tokens",
        "a_follower_takes_exactly_the_shared_positions",
        "nobody_writes_into_a_block_that_several_rows_name",
        "shared_blocks_outlive_the_row_that_filled_them_and_are_free_after_the_last",
    )
)

KERNELS = "kernels/test_kernels.py"
TWINS, ABOVE, READS = (
    f"{KERNELS}::test_{law}"
    for law in (
        "the_kernels_equal_their_twins",
        "what_lies_above_the_visible_positions_changes_no_bit",
        "a_kernel_for_rows_of_any_length_reads_nothing_but_what_some_query_sees",
    )
)


BY_CPU = "kernels/test_cpu_kernels.py"
BY_CPU_PROGRAM = "kernels/test_cpu_program.py"
BY_CPU_STEP = "kernels/test_cpu_step.py"
ROWS_TEST = "kernels/test_batch_state.py"
EARLY = ("kernels/test_hopper_gemm.py::test_products_equal_their_twins_wherever_they_are_cut",)
ROTATED = ("kernels/test_hopper_attention.py::test_one_kernel_rotates_stores_attends_as_three_do",)
NORMED = ("kernels/test_hopper_gemm_residual.py::test_a_norm_between_two_products_takes_no_kernel",)
OBSERVED, STATES = (
    f"laws/test_8_features.py::test_{name}"
    for name in (
        "a_drafter_observes_each_committed_token_once",
        "states_are_what_leaves_the_layers_before",
    )
)
DECODERS = "kernels/test_models.py::test_a_decoder_by_kernels_gives_the_logits_of_torch"
BY_KERNELS = "kernels/test_models.py::test_blocks_by_kernels_emit_the_oracles_tokens"
SOON = "unit/test_steps_ahead.py"
TOO_EARLY = f"{SOON}::test_no_step_is_launched_ahead_of_an_admission_or_near_a_limit"
INVALID = "laws/test_7_invalid_drafts.py"
IMPOSSIBLE = "laws/test_7_invalid_targets.py"
PAIRS = "unit/test_pairs.py"
ONE_CONTEXT = (
    f"{PAIRS}::test_a_draft_of_a_shorter_context_drafts_up_to_its_end_and_the_target_goes_on"
)
ONE_PADDING = (
    f"{PAIRS}::test_one_seed_gives_the_same_samples_with_a_draft_and_without_at_every_padding"
)
RULES, DRAFTERS, STOP_LAWS, DRAFT_LAWS = (
    "unit/test_stop_rules.py",
    "unit/test_drafters.py",
    "laws/test_3_stop_rules.py",
    "laws/test_3_drafters.py",
)
RULED = f"{STOP_LAWS}::test_the_joint_law_of_three_tokens_is_the_targets"
PART_EQUAL = f"{DRAFT_LAWS}::test_a_part_equal_to_the_target_is_always_accepted"
FED, AFTER = (
    f"{DRAFT_LAWS}::test_a_{law}"
    for law in (
        "model_among_drafters_has_been_fed_every_committed_token",
        "model_equal_to_the_target_is_always_right_after_the_drafts_of_another",
    )
)
TRIM_LAWS = "laws/test_0_trims.py"
TRIM_REPORT, TRIM_PAST = (
    f"laws/test_3_trims.py::test_a_{law}"
    for law in (
        "report_tells_kept_and_trimmed_tokens",
        "trim_is_given_the_rows_own_past_and_the_draft_models_distributions",
    )
)
STOP_STRINGS = "unit/test_stop_strings.py"
STOPPED = f"{STOP_STRINGS}::test_a_stop_string_ends_a_text_as_the_decoding_of_every_prefix_says"
PARTS = f"{STOP_STRINGS}::test_tokens_that_end_within_characters_make_the_text_of_every_prefix"
REPEATED = "unit/test_requests.py::test_a_prompt_that_a_call_repeats_goes_on_with_its_samples"
REFUSED, DRAWN_FROM = (
    f"unit/test_recorded_drafts.py::test_{law}"
    for law in (
        "accepted_drafts_are_committed_and_rejected_ones_are_not",
        "a_recorded_probability_is_that_of_the_distribution_drawn_from",
    )
)
WRITTEN_DRAFT, WRITTEN_VERDICT = (
    f"unit/test_strategies_that_write.py::test_a_{name}"
    for name in (
        "drafter_that_writes_to_lengths_and_assignments",
        "verifier_that_writes_to_its_draft_and_its_noise",
    )
)
