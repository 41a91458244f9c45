"""Planted defects, as data: the tests must kill every one. `python -m support.mutants` (in tests/) shows which test does.

A mutant that survives is a hole in the tests, and is mended there. Each edit must apply exactly once; if the source has
moved on, the mutant has to follow it. `trap` is the number in the table of docs/correctness.md, 0 for those of our own.
"""

# ruff: noqa: E501  (an edit is quoted as it stands in the source)

from dataclasses import dataclass

ENUMERATION = "laws/test_0_enumeration.py"
GREEDY = "laws/test_1_greedy.py"
MATRIX = f"{GREEDY}::test_a_target_that_hashes_its_whole_memory_emits_the_oracles_tokens"
LAYOUTS = f"{GREEDY}::test_every_layout_backend_policy_drafter_and_verifier_emits_the_oracles_tokens"
WITNESS = f"{GREEDY}::test_every_query_finds_its_rows_committed_tokens_and_no_others"
WRONG = f"{GREEDY}::test_a_drafter_that_is_always_wrong_gives_plain_decoding_one_token_a_step"
TWO_ROWS = f"{GREEDY}::test_a_row_that_rejects_all_and_a_row_that_accepts_all_do_not_disturb_each_other"
EQUAL = f"{GREEDY}::test_a_draft_equal_to_the_target_is_always_accepted"
EOS = f"{GREEDY}::test_an_end_of_sequence_at_any_place_of_an_accepted_draft_ends_that_row_there_and_no_other"
PAD_EOS = f"{GREEDY}::test_an_end_of_sequence_token_that_is_also_the_padding_of_every_buffer_ends_only_where_it_is_emitted"
LIMIT = f"{GREEDY}::test_a_row_at_its_limit_neither_stops_nor_truncates_nor_shortens_the_others"
ACCOUNT = f"{GREEDY}::test_the_account_of_drafted_and_accepted_tokens_adds_up_to_the_committed_ones"
STOPS = f"{GREEDY}::test_a_stop_rule_ends_a_draft_right_after_the_token_at_which_it_fires"
LOGPROBS = f"{GREEDY}::test_log_probabilities_are_the_targets_own"
SHARED = f"{GREEDY}::test_samples_of_one_prompt_share_one_prefill_and_still_agree_with_the_oracle"
LAYOUT_BITS = "laws/test_2_invariance.py::test_every_layout_and_backend_gives_the_same_tokens"
ALONE = "laws/test_2_invariance.py::test_a_request_alone_and_in_any_batch_gives_the_same_tokens_and_the_same_acceptance"
PLAIN = "laws/test_2_invariance.py::test_the_engine_without_drafts_gives_the_plain_loops_tokens_with_sampling_on"
JOINT = "laws/test_4_joint_law.py"
LOSSES = f"{JOINT}::test_the_joint_law_is_the_targets_under_every_policy_drafter_and_verifier"
ONE_SEED = "laws/test_6_coupled.py"
WARPS = f"{JOINT}::test_the_joint_law_of_three_tokens_is_the_targets"
STEPS = f"{JOINT}::test_consecutive_steps_share_no_noise"
NOISE, SAMPLING, POLICIES, RECORDS, CACHES, ATTENTION, VERIFIERS = (
    f"unit/test_{name}.py" for name in ("noise", "sampling", "policies", "records", "caches", "attention", "verifiers")
)
VECTORS = "unit/test_verifiers_vectors.py"

ROOM, POOL, TAKES, NOBODY, LEADER, OUTLIVE = (
    f"unit/test_paged.py::test_{law}"
    for law in (
        "requests_of_any_prompts_that_end_in_any_order_fit_their_room_and_keep_their_own_tokens",
        "the_pool_has_the_blocks_of_as_many_prompts_and_requests_as_there_are_rows",
        "a_follower_takes_exactly_the_shared_positions",
        "nobody_writes_into_a_block_that_several_rows_name",
        "a_leader_is_filled_after_its_followers_have_their_seats",
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


@dataclass(frozen=True)
class Mutant:
    """`old` -> `new` in src/bass/`file`, to be killed by one of `tests` (files or tests, the cheapest first)."""

    name: str
    trap: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


ROWS, ROWS_TEST = "kernels/rows.py", "kernels/test_rows.py"
VERIFIER, STEP, RUN, DRAFTER = "verifiers/rejection.py", "engine/step.py", "engine/run.py", "drafters/model.py"
BLOCK, COUPLED, EXACT, TYPICAL, SYNTHETIC, EMIT = (
    f"verifiers/{name}.py" for name in ("block", "coupled", "exact_match", "typical", "synthetic", "emit")
)
SLOTS, SDPA, SPLIT, PADDED, PAGED = "engine/slots.py", "attention/sdpa.py", "caches/split.py", "caches/padded.py", "caches/paged.py"
AHEAD, EARLY = "kernels/ahead.py", ("kernels/test_ahead.py::test_products_equal_their_twins_wherever_they_are_cut",)
AT_ONCE, TURNED = "kernels/ahead_attention.py", ("kernels/test_ahead_attention.py::test_one_kernel_turns_stores_and_attends_as_three_do",)
ADDED, NORMED = "kernels/ahead_added.py", ("kernels/test_ahead_added.py::test_a_norm_between_two_products_takes_no_kernel",)
IN_FIVE = ("kernels/test_ahead_blocks.py::test_blocks_in_five_launches_are_blocks",)
SOON = "unit/test_steps_ahead.py"
TOO_EARLY = f"{SOON}::test_no_step_is_launched_ahead_while_requests_wait_near_a_limit_or_where_its_shape_is_not_at_hand"
KERNEL, REFERENCE = "kernels/attention.py", "kernels/reference.py"
VALIDITY, INVALID = "drafters/validity.py", "laws/test_7_invalid_drafts.py"
PAIRS = "unit/test_pairs.py"
ONE_PADDING = f"{PAIRS}::test_one_seed_gives_the_same_samples_with_a_draft_and_without_at_every_padding"
NGRAM, REPLAY, ENSEMBLE = (f"drafters/{name}.py" for name in ("ngram", "replay", "ensemble"))
RULES, DRAFTERS, STOP_LAWS, DRAFT_LAWS = (
    "unit/test_stop_rules.py",
    "unit/test_drafters.py",
    "laws/test_3_stop_rules.py",
    "laws/test_3_drafters.py",
)
RULED = f"{STOP_LAWS}::test_the_joint_law_of_three_tokens_is_the_targets"
FED, AFTER, FIRST = (
    f"{DRAFT_LAWS}::test_a_{law}"
    for law in (
        "model_in_an_ensemble_has_been_fed_every_committed_token",
        "model_equal_to_the_target_is_always_right_after_the_drafts_of_another",
        "target_that_drafts_for_itself_proposes_what_its_first_layers_say",
    )
)
TRANSCRIPT = "text/transcript.py"
STOPPED = "unit/test_stop_strings.py::test_a_stop_string_ends_a_text_as_the_decoding_of_every_prefix_says"
PARTS = "unit/test_stop_strings.py::test_tokens_that_end_within_characters_make_text_as_the_decoding_of_every_prefix_says"
REPEATED = "unit/test_requests.py::test_a_prompt_that_a_call_repeats_goes_on_with_its_samples"
ENDED = "unit/test_generation.py::test_the_finish_reason_says_what_ended_a_generation"
ABLATE, DRAFTED, AGAINST = (f"unit/test_ablate{part}.py" for part in ("", "_drafts", "_plain"))
REFUSED, DRAWN_FROM, TIMED, LIKEST, BY_REPEAT, ANEW = (
    f"{DRAFTED}::test_what_was_drafted_and_accepted_is_what_was_committed_and_what_was_refused_is_not",
    f"{DRAFTED}::test_the_probability_of_a_drafted_token_is_that_of_the_distribution_it_was_drawn_from",
    f"{DRAFTED}::test_timing_the_parts_of_a_step_changes_nothing_of_the_run",
    f"{AGAINST}::test_a_cell_is_held_against_the_likest_plain_one_that_decodes_the_same",
    f"{ABLATE}::test_a_cell_is_held_against_plain_decoding_repeat_by_repeat",
    f"{ABLATE}::test_the_drafts_of_a_repeat_that_did_not_end_are_written_anew",
)

MUTANTS = (
    Mutant(
        "the bonus comes from the draft", 1, VERIFIER,
        "    return torch.where(residual.sum(1, keepdim=True) > 0, residual, target)",
        "    bonus = (accepted == draft.lengths)[:, None] & (draft.lengths > 0)[:, None]\n"
        "    return torch.where(bonus, refused, torch.where(residual.sum(1, keepdim=True) > 0, residual, target))",
        (ENUMERATION,),
    ),
    Mutant(
        "a query of the padded layout sees one stale key", 2, SDPA,
        "visible = place <= own", "visible = place <= own + 1", (ATTENTION, WRONG),
    ),
    Mutant(
        "a query of the padded layout sees its whole window", 2, SDPA,
        "visible = place <= own", "visible = place <= own.amax(1, keepdim=True).expand_as(own)", (WRONG,),
    ),
    Mutant(
        "a query of the split layout sees its whole window", 2, REFERENCE,
        "hidden = place > own", "hidden = place > own.amax(1, keepdim=True).expand_as(own)", (WRONG,),
    ),
    Mutant(
        "rows advance by the batch's minimum", 3, "records.py",
        "        slots = torch.where(offsets <",
        "        emitted = torch.where(self.active, emitted[self.active].min() if self.active.any() else 0, 0)\n        slots = torch.where(offsets <", (TWO_ROWS,),
    ),
    Mutant(
        "acceptance is cut to the batch's minimum", 3, VERIFIER,
        "        accepted = kept.cumprod(1).sum(1)", "        accepted = kept.cumprod(1).sum(1).amin().expand(len(kept))", (ENUMERATION,),
    ),
    Mutant(
        "the target's window has the positions of the longest row", 4, STEP,
        "torch.where(fed, position + ahead, -1)", "torch.where(fed, position.amax() + ahead, -1)", (MATRIX,),
    ),
    Mutant(
        "the draft's positions are those of the longest row", 4, DRAFTER,
        "here = lens[:, None] + ahead", "here = lens.amax().expand(len(lens))[:, None] + ahead", (WITNESS, EQUAL),
    ),
    Mutant(
        "drafting has no mask", 5, DRAFTER,
        "logits = self.scorer(tokens, positions, span)[:, -1:]",
        "logits = self.scorer(tokens, torch.where(positions < 0, -1, positions + (span - 1 - positions[:, -1:])), span)[:, -1:]",
        (EQUAL,),
    ),
    Mutant(
        "rows that do not draft write over position 0 of the draft's cache", 5, DRAFTER,
        "return torch.where(ahead + 1 < lengths[:, None], here, -1)",
        "return torch.where(ahead + 1 < lengths[:, None], here, 0)", (ALONE, WITNESS),
    ),
    Mutant(
        "rows advance by the whole window", 6, "records.py",
        "        self.lens.add_(emitted)",
        "        self.lens.copy_(torch.where(self.active, torch.minimum(self.lens + window, self.limits), self.lens))", (RECORDS, MATRIX),
    ),
    Mutant(
        "the window starts after the last committed token", 7, STEP,
        "torch.where(fed, position + ahead, -1)", "torch.where(fed, position + ahead + 1, -1)", (MATRIX,),
    ),
    Mutant(
        "the last drafted token is not fed to the target", 7, STEP,
        "fed = (ahead <= draft.lengths[:, None])", "fed = (ahead < draft.lengths[:, None].clamp(min=1))", (MATRIX,),
    ),
    Mutant(
        "the draft's cache lacks a token after full acceptance", 8, DRAFTER,
        "tokens, positions = sequences.last(2)", "tokens, positions = sequences.last(1)", (EQUAL,),
    ),
    Mutant(
        "after plain steps the draft is fed one token too few", 8, RUN,
        "sequences.last(behind + 2)", "sequences.last(behind + 1)", (WITNESS,),
    ),
    Mutant(
        "after plain steps the draft is not told what was committed", 8, RUN,
        "if k and behind else ()", "if k and behind > 99 else ()", (EQUAL,),
    ),
    Mutant(
        "the first drafted token is not verified", 9, VERIFIER,
        "        accepted = kept.cumprod(1).sum(1)", "        kept[:, :1] = counts[:, :1]\n        accepted = kept.cumprod(1).sum(1)",
        (ENUMERATION,),
    ),
    Mutant(
        "a token is judged by the distribution after it", 9, VERIFIER,
        "target_probs[:, : index.shape[1]].gather", "target_probs[:, 1:].gather", (WRONG, ENUMERATION),
    ),
    Mutant(
        "the refused token is emitted too", 9, EMIT,
        "return Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), accepted)",
        "return Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), torch.where(accepted < draft.lengths, accepted + 1, accepted))",
        (ENUMERATION,),
    ),
    Mutant(
        "the draft reports its raw distribution", 10, DRAFTER,
        "probs.append(at)", "probs.append(logits[:, 0].softmax(-1))", (WARPS,),
    ),
    Mutant(
        "the draft takes the mode and reports the distribution", 10, DRAFTER,
        "drafted[:, i] = self.draw(at, noise, i)", "drafted[:, i] = at.argmax(-1)", (WARPS,),
    ),
    Mutant(
        "the target is not warped", 10, STEP,
        "probs = self.warp(logits, History(sequences.tokens, sequences.lens, draft.tokens))", "probs = logits.softmax(-1)", (MATRIX,),
    ),
    Mutant(
        "the residual uses the draft's noise", 11, "records.py",
        "return self.uniforms[..., 2]", "return self.uniforms[..., 0]", (ENUMERATION,),
    ),
    Mutant(
        "acceptance uses the draft's noise", 11, "records.py",
        "return self.uniforms[..., 1]", "return self.uniforms[..., 0]", (ENUMERATION,),
    ),
    Mutant(
        "the residual uses the noise of acceptance", 11, "records.py",
        "return self.uniforms[..., 2]", "return self.uniforms[..., 1]", (ENUMERATION,),
    ),
    Mutant(
        "all slots of a step draw with one uniform", 11, "noise.py",
        "uniforms(keys, steps, k + 1)", "uniforms(keys, steps, 1).expand(-1, k + 1, -1)", (NOISE,),
    ),
    Mutant(
        "all drafted tokens of a step are drawn with one uniform", 11, "engine/bench.py",
        "noise.draft[:, i]", "noise.draft[:, 0]", (f"{JOINT}::test_the_joint_law_is_the_targets_under_every_policy_drafter_and_verifier", WARPS),
    ),
    Mutant(
        "a row's steps are not counted", 11, "records.py",
        "        self.steps.add_(self.active)\n", "", (STEPS,),
    ),
    Mutant(
        "the rows of a batch share their noise", 11, STEP,
        "noise = step_noise(sequences.keys, sequences", "noise = step_noise(sequences.keys[:1].expand(len(lengths)), sequences",
        (ALONE,),
    ),
    Mutant(
        "a drafted token is retracted because it is improbable", 12, DRAFTER,
        "            if self.stop_rule is not None:\n",
        "            if self.stop_rule is not None:\n"
        "                doubtful = at.gather(1, drafted[:, i : i + 1])[:, 0] < 0.3\n"
        "                lengths = torch.where(doubtful, lengths.clamp(max=i), lengths)\n",
        (RULED, WARPS),
    ),
    Mutant(
        "a row's boundary uses the residual", 13, VERIFIER,
        "(accepted < draft.lengths)[:, None]", "(accepted < draft.tokens.shape[1])[:, None]", (ENUMERATION,),
    ),
    Mutant(
        "tokens beyond a row's length are verified too", 13, VERIFIER,
        "torch.arange(k, device=target_probs.device) < draft.lengths[:, None]",
        "torch.arange(k, device=target_probs.device) < k + 0 * draft.lengths[:, None]", (ENUMERATION,),
    ),
    Mutant(
        "a row of length 0 is given one token when others draft", 14, VERIFIER,
        "< draft.lengths[:, None]", "< draft.lengths.clamp(min=1)[:, None]", (ENUMERATION,),
    ),
    Mutant(
        "no row drafts when one has length 0", 14, RUN,
        "                k = int(lengths.max())\n", "                lengths = lengths * int(lengths[seated].min() > 0)\n                k = int(lengths.max())\n",
        (ALONE, LIMIT),
    ),
    Mutant(
        "an end of sequence counts only as the last token", 15, "records.py",
        "(verdict.tokens[..., None] == self.eos).any(-1)",
        "(verdict.tokens[..., None] == self.eos).any(-1) & (offsets == verdict.accepted[:, None])", (EOS,),
    ),
    Mutant(
        "an end of sequence beyond the accepted tokens counts", 15, "records.py",
        "logical_and_((first_end >= emitted)", "logical_and_(~ends.any(1)", (PAD_EOS, RECORDS),
    ),
    Mutant(
        "an end of sequence is left out", 15, "records.py",
        "torch.minimum(verdict.accepted, first_end) + 1", "torch.minimum(verdict.accepted + 1, first_end)", (EOS,),
    ),
    Mutant(
        "finished rows go on emitting", 15, "records.py",
        "self.limits - self.lens) * self.active", "self.limits - self.lens)", (RECORDS,),
    ),
    Mutant(
        "finished rows count in the batch's maximum", 15, "policies/batch_adaptive.py",
        "feedback.accepted[feedback.active].max()", "feedback.accepted.max()", (POLICIES,),
    ),
    Mutant(
        "the smallest limit of the batch cuts every row", 16, "records.py",
        "self.limits - self.lens)", "(self.limits[self.active].amin() - self.lens if self.active.any() else self.limits).clamp(min=0))", (LIMIT, ACCOUNT),
    ),
    Mutant(
        "a row at its limit shortens the others' drafts", 16, RUN,
        "asked_lengths(policy, state, batch), limits - lens - 1)", "asked_lengths(policy, state, batch), (limits - lens - 1)[seated].min())", (LIMIT,),
    ),
    Mutant(
        "one finished row ends the batch", 16, "records.py",
        "self.active.logical_and_(", "self.active.logical_and_(((self.lens < self.limits) | ~self.active).all()).logical_and_(", (LIMIT,),
    ),
    Mutant(
        "the report counts accepted tokens that were not committed", 17, STEP,
        "accepted = torch.minimum(verdict.accepted, emitted)", "accepted = verdict.accepted", (EOS,),
    ),
    Mutant(
        "idle rows report drafts", 17, STEP,
        "draft.lengths, accepted", "draft.lengths.clamp(min=1), accepted", (ACCOUNT,),
    ),
    Mutant(
        "the padding of a prefill is written", 18, SLOTS,
        "positions = np.where(positions < counts[:, None], positions, -1)", "positions = positions + 0", (LAYOUTS, WITNESS),
    ),
    Mutant(
        "positions of the split pool start at the longest row's extent", 18, SPLIT,
        "np.cumsum(extents)[:-1]", "np.arange(1, len(extents)) * extents.max()", (CACHES,),
    ),
    # Our own.
    Mutant("Algorithm 1 follows the worst row", 0, "policies/batch_adaptive.py", "[feedback.active].max()", "[feedback.active].min()", (POLICIES,)),
    Mutant("Algorithm 1 forgets that it shrank", 0, "policies/batch_adaptive.py", " - state.shrunk", "", (POLICIES,)),
    Mutant("Algorithm 1 shrinks below what was accepted", 0, "policies/batch_adaptive.py", "max(1, best, shorter)", "max(1, shorter)", (POLICIES,)),
    Mutant("Algorithm 1 grows beyond its limit", 0, "policies/batch_adaptive.py", "min(state.length + self.increment, self.max_length)", "state.length + self.increment", (POLICIES,)),
    Mutant("a row stops one token after its limit", 0, "records.py", "(self.lens < self.limits))", "(self.lens <= self.limits))", (RECORDS,)),
    Mutant("a commit leaves out the verifier's own token", 0, "records.py", "(verdict.accepted, first_end) + 1", "(verdict.accepted, first_end)", (RECORDS,)),
    Mutant(
        "a commit at a row's end overwrites its last token", 0, "records.py",
        "self.lens[:, None] + offsets, self.capacity)", "self.lens[:, None] + offsets, self.capacity - 1)", (RECORDS,),
    ),
    Mutant("a prompt's last but one token is not fed", 0, SLOTS, "counts = np.array([len(prompt) - 1 for", "counts = np.array([max(len(prompt) - 2, 0) for", (WITNESS,)),
    Mutant(
        "a later window of a prefill starts again at 0", 0, SLOTS,
        "np.arange(first, min(first + PREFILL_WINDOW, counts.max()))", "np.arange(min(first + PREFILL_WINDOW, counts.max()) - first)", (WITNESS,),
    ),
    Mutant("an idle row lends its prompt", 0, SLOTS, "enumerate(self.requests))) if r >= 0}", "enumerate(self.requests)))}", (SHARED, WITNESS)),
    Mutant("a prompt is copied from the wrong row", 0, SLOTS, "source[row] = donors[", "source[row] = 0 * donors[", (SHARED, WITNESS)),
    Mutant("a new prompt inherits the steps of the last", 0, SLOTS, "        s.steps[index] = 0\n", "", (ALONE,)),
    Mutant("a new prompt inherits the policy's state", 0, RUN, "state = policy.reset(state, admitted)", "state = policy.reset(state, admitted[:0])", (ALONE,)),
    Mutant("the span does not cover the window", 0, RUN, "self.step.span(int(((lens + lengths) * seated).max()),", "self.step.span(int(lens[seated].max() - 1),", (WITNESS, LAYOUTS)),
    Mutant("a prefill's span is one window short", 0, SLOTS, "bucket(first + positions.shape[1], self", "bucket(max(first, 1), self", (WITNESS, LAYOUTS)),
    Mutant("a window of the padded layout is one position too long", 0, SDPA, "place > own - window", "place >= own - window", (ATTENTION,)),
    Mutant("a window of the split layout is one position too short", 0, REFERENCE, "place <= own - window", "place <= own - window + 1", (ATTENTION,)),
    Mutant("all layers share the first layer's window", 0, SDPA, "self._biases[window] = torch", "self._biases[window] = next(iter(self._biases.values()), None) if self._biases else torch", (ATTENTION,)),
    Mutant("soft caps are left out in the padded layout", 0, SDPA, "if rule.softcap is None:", "if True:", (ATTENTION,)),
    Mutant("a soft cap bends nothing in the split layout", 0, REFERENCE, "softcap * torch.tanh(scores / softcap)", "scores.clamp(-softcap, softcap)", (ATTENTION,)),
    Mutant("every layer attends by the first layer's rule", 0, "engine/scorer.py", "return self.rules[layer]", "return self.rules[0]", (ATTENTION,)),
    Mutant("grouped heads meet the wrong keys in the split layout", 0, REFERENCE, "q.unflatten(2, (kv_heads, -1))", "q.unflatten(2, (-1, kv_heads)).transpose(2, 3)", (ATTENTION,)),
    Mutant("the mask is laid out window by window", 0, SDPA, ".repeat(1, 1, groups, 1)", ".repeat_interleave(groups, 2)", (ATTENTION,)),
    Mutant("a write at -1 lands in the row before", 0, SPLIT, "torch.where(positions < 0, -1, self.starts[:, None] + positions)", "self.starts[:, None] + positions", (CACHES,)),
    Mutant("the spare slot is a position", 0, PADDED, "PaddedView(keys[:, :-1], values[:, :-1])", "PaddedView(keys, values)", (CACHES,)),
    Mutant("rows are copied the wrong way round", 0, PADDED, "(rows, seats.source[rows])", "(seats.source[rows], rows)", (CACHES,)),
    Mutant("values stay behind when rows are copied", 0, PADDED, "            self.v[:, to, :count] = self.v[:, came, :count]\n", "", (CACHES,)),
    Mutant("a reserve forgets what rows hold", 0, SPLIT, "        self._move(_starts(self.extents), _starts(extents), kept)\n", "", (CACHES,)),
    Mutant("the residual keeps the refused token of a deterministic draft", 0, VERIFIER, "refused = one_hot(target, draft.tokens[rows, at]) if draft.probs is None", "refused = torch.zeros_like(target) if draft.probs is None", (ENUMERATION,)),
    Mutant("a deterministic token is always accepted", 0, VERIFIER, "        return target\n    return (target / ", "        return torch.ones_like(target)\n    return (target / ", (ENUMERATION,)),
    Mutant("the residual is the distance", 0, VERIFIER, "[:, None]).clamp(min=0)", "[:, None]).abs()", (ENUMERATION,)),
    Mutant("the residual is drawn at the next slot's noise", 0, EMIT, "noise.residual.gather(1, accepted[:, None])", "noise.residual.gather(1, (accepted[:, None] + 1).clamp(max=draft.tokens.shape[1]))", (VERIFIERS, ENUMERATION)),
    Mutant("acceptance goes on after a refusal", 0, VERIFIER, "kept.cumprod(1).sum(1)", "kept.sum(1)", (ENUMERATION,)),
    Mutant("the draft's history lacks its own tokens", 0, DRAFTER, "drafted[:, :i]))", "drafted[:, :0]))", (EQUAL,)),
    Mutant("the target's history lacks the drafted tokens", 0, STEP, "sequences.lens, draft.tokens))", "sequences.lens, draft.tokens[:, :0]))", (WARPS,)),
    Mutant("a stop rule ends the draft one token late", 0, DRAFTER, "lengths.clamp(max=i + 1)", "lengths.clamp(max=i + 2)", (STOPS,)),
    Mutant("the noise knows only half of a key", 0, "noise.py", "(keys >> 32) & _MASK", "keys & _MASK", (NOISE,)),
    Mutant("the noise has nine rounds", 0, "noise.py", "rounds: int = 10", "rounds: int = 9", (NOISE,)),
    Mutant("a draw at a cell's edge goes down", 0, "sampling.py", "right=True", "right=False", (SAMPLING,)),
    Mutant("top-p leaves out the token that reaches it", 0, "sampling.py", "(before < top_p).sum(-1, keepdim=True)", "((before < top_p).sum(-1, keepdim=True) - 1).clamp(min=0)", (SAMPLING,)),
    Mutant("the penalty counts a window's later tokens", 0, "sampling.py", "columns + 1 - window :]", "columns + 1 - window :].amax(1, keepdim=True).expand(-1, window, -1)", (SAMPLING,)),
    Mutant("a logit's penalty lags one drafted token", 0, "sampling.py", "F.one_hot(history.drafted, vocab).cumsum(1)", "F.one_hot(history.drafted, vocab).cumsum(1) - F.one_hot(history.drafted, vocab)", (SAMPLING,)),
    Mutant("log-probabilities are of the token before", 0, STEP, "torch.where(known, tokens, 0)[..., None]", "torch.where(known, tokens.roll(1, 1), 0)[..., None]", (LOGPROBS,)),
    Mutant("block verification forgets how improbable the prefix was", 0, BLOCK, "next_probs(draft, weighted, accepted)", "next_probs(draft, target_probs, accepted)", (ENUMERATION,)),
    Mutant("block verification stops at the first prefix that fails", 0, BLOCK, "accepted = torch.where(passes, length, 0).amax(1)", "accepted = passes.cumprod(1).sum(1)", (ENUMERATION,)),
    Mutant("block verification judges a row's end like its middle", 0, BLOCK, "torch.where(length == draft.lengths[:, None], joint[:, 1:], before)", "before", (ENUMERATION,)),
    Mutant("block verification accepts a prefix with its joint probability", 0, BLOCK, "torch.where(length == draft.lengths[:, None], joint[:, 1:], before)", "joint[:, 1:]", (ENUMERATION,)),
    Mutant("a prefix of the block gains what a token has over one", 0, BLOCK, "(probs[i] * ratio[:, i]).clamp(max=1)", "probs[i] * ratio[:, i]", (ENUMERATION,)),
    Mutant("block verification keeps the deterministic token in its residual", 0, BLOCK, "weighted[:, 1:k].scatter(2, draft.tokens[:, 1:, None], 0)", "weighted[:, 1:k]", (ENUMERATION,)),
    Mutant("block verification is rejection", 0, BLOCK, "        k = draft.tokens.shape[1]\n        if k == 0:", "        from bass.verifiers.rejection import Rejection\n\n        return Rejection()(draft, target_probs, noise)\n        k = draft.tokens.shape[1]\n        if k == 0:", (ENUMERATION,)),
    Mutant("coupled noise belongs to the slot and not to the position", 0, COUPLED, "noise.keys, noise.first)", "noise.keys, 0 * noise.first)", (ONE_SEED,)),
    Mutant("coupled verification takes the noise of the step", 0, COUPLED, "noise.keys, noise.first)", "(noise.uniforms[:, 0, 3] * 2.0**52).long(), noise.first)", (ONE_SEED,)),
    Mutant("coupled verification emits the drafted token after a difference", 0, COUPLED, "return Verdict(tokens, ", "tokens[:, :-1] = draft.tokens\n        return Verdict(tokens, ", (ONE_SEED,)),
    Mutant("coupled noise is that of the steps again", 0, "noise.py", "_POSITIONS = 1 ", "_POSITIONS = 0 ", (ONE_SEED,)),
    Mutant("four neighbouring tokens share their coupled noise", 0, "noise.py", "-1)[..., :vocab]", "-1)[..., ::4].repeat_interleave(4, -1)[..., :vocab]", (ONE_SEED,)),
    Mutant("the race is won by the sum", 0, "noise.py", " / probs).argmin(2)", " - probs).argmin(2)", (ONE_SEED,)),
    Mutant("exact match goes on after a difference", 0, EMIT, "(kept & counts).cumprod(1).sum(1)", "(kept & counts).sum(1)", (ENUMERATION,)),
    Mutant("exact match goes on beyond a row's length", 0, EMIT, "(kept & counts).cumprod(1)", "kept.cumprod(1)", (ENUMERATION,)),
    Mutant("exact match draws with the draft's noise", 0, EXACT, "noise.residual[:, :", "noise.draft[:, :", (ENUMERATION,)),
    Mutant("typical acceptance claims to be lossless", 0, TYPICAL, "lossless: ClassVar[bool] = False", "lossless: ClassVar[bool] = True", (LOSSES,)),
    Mutant("typical acceptance knows no entropy", 0, TYPICAL, "(delta * (-torch.special.entr(judged).sum(2)).exp())", "(delta + 0 * judged.sum(2))", (VECTORS,)),
    Mutant("synthetic acceptance is of the position after", 0, SYNTHETIC, "< self.rate(i)", "< self.rate(i + 1)", (VECTORS,)),
    Mutant("synthetic acceptance looks at the target", 0, SYNTHETIC, "noise.accept[:, i] < self.rate(i)", "(noise.accept[:, i] < self.rate(i)) & (target_probs[:, i].amax(-1) > 0.4)", (VECTORS,)),
    Mutant("a kernel's query sees one stale key", 0, KERNEL, "key[None, :] <= own[:, None]", "key[None, :] <= own[:, None] + 1", (ABOVE,)),
    Mutant("a kernel reads one key beyond a row's last", 0, KERNEL, "stop = tl.max(own, 0) + 1", "stop = tl.max(own, 0) + 2", (READS,)),
    Mutant("a kernel's window is one position too long", 0, KERNEL, "key[None, :] > own[:, None] - WINDOW", "key[None, :] >= own[:, None] - WINDOW", (TWINS,)),
    Mutant("a kernel's splits miss the keys that fill no block", 0, KERNEL, "(stop - start + KEYS - 1) // KEYS", "(stop - start) // KEYS", (TWINS,)),
    Mutant("a kernel's splits overlap by one key", 0, KERNEL, "end = tl.minimum(begin + share, stop)", "end = tl.minimum(begin + share + 1, stop)", (TWINS,)),
    Mutant("a kernel finds the next block of the table", 0, KERNEL, "(key // PAGE) * place_entry", "((key + 1) // PAGE) * place_entry", (TWINS,)),
    Mutant("a kernel lays grouped heads along the wrong keys", 0, KERNEL, "heads = head * GROUPS + each % GROUPS", "heads = head + each % GROUPS * tl.num_programs(1)", (TWINS,)),
    Mutant("the splits are combined without their maximum", 0, KERNEL, "total = tl.sum(sums * tl.exp(theirs - level[None, :]), 0)", "total = tl.sum(sums, 0)", (TWINS,)),
    Mutant("the first split to end puts them together", 0, KERNEL, "last = came == splits - 1", "last = came == 0", (TWINS,)),
    Mutant("the splits are not counted anew", 0, KERNEL, "tl.store(place_of_count, 0)", "tl.store(place_of_count, 1)", (TWINS,)),
    Mutant("a kernel's key is written at -1", 5, "kernels/stream.py", "live & (key < 0)[:, None], live & (position >= 0)", "live & (key < 0)[:, None], live", ("kernels/test_rotary.py::test_turning_and_storing_at_once_equals_one_after_the_other",)),
    Mutant("a tile begins with the sums of the last one", 0, AHEAD, "total = warpgroup_mma(w_tiles.index(slot), x, total, use_acc=first == 0)", "total = warpgroup_mma(w_tiles.index(slot), x, total)", EARLY),
    Mutant("rows are asked for before the kernel before has ended", 0, AHEAD, "    gdc_launch_dependents()\n    gdc_wait()\n", "    gdc_launch_dependents()\n", EARLY),
    Mutant("a program takes one gift too few", 0, AHEAD, "for giver in range(owner, program):", "for giver in range(owner + 1, program):", EARLY),
    Mutant("gifts are taken by gated products alone", 0, AHEAD, "total += gl.load(gift, cache_modifier=\".cg\")", "total += gl.load(gift, cache_modifier=\".cg\") if GATED else 0", EARLY),
    Mutant("a summand that a tile does not have is left as it was", 0, AHEAD, "gl.where(block == each - 1, piece + 1, SUMMANDS)", "gl.where(block == each - 1, piece + 2, SUMMANDS)", EARLY),
    Mutant("the bias is added to every summand", 0, AHEAD, "gl.where(piece == 0, added, gl.zeros_like(added))", "added", EARLY),
    Mutant("a norm's eps is left out", 0, AHEAD, "gl.rsqrt(sums / k_size + eps)", "gl.rsqrt(sums / k_size)", NORMED),
    Mutant("the window is read before the kernel before has ended", 0, AT_ONCE, "    gdc_launch_dependents()\n    gdc_wait()\n", "    gdc_launch_dependents()\n", TURNED),
    Mutant("every share counts the window's own keys", 0, AT_ONCE, "    seen = seen & (share == 0)[:, None][:, None, :]\n", "", TURNED),
    Mutant("a query sees the window's later keys", 0, AT_ONCE, "& (column_at[None, None, :] <= line_at[None, :, None])", "", TURNED),
    Mutant("values beyond the old ones are left as they are", 0, AT_ONCE, "if first + KEYS > old:", "if False:", TURNED),
    Mutant("old keys come from one slot too far", 0, AT_ONCE, "start + first + STAGES * KEYS", "start + first + STAGES * KEYS + 1", TURNED),
    Mutant("shares are put together at levels of their own", 0, AT_ONCE, "gl.exp(top - gl.where(best >", "gl.exp(top - top + 0 * gl.where(best >", TURNED),
    Mutant("the next norm's weight is left out", 0, ADDED, "(value * weights[:, None])", "value", NORMED),
    Mutant("the shares of a product are not put together", 0, ADDED, "gl.sum(sums.load(of_sums), 0)", "sums.load(of_sums)[0]", NORMED),
    Mutant("a block takes what was left for another's norm", 0, "models/fused.py", "if isinstance(x, Carried) and x.weight is first.weight:", "if isinstance(x, Carried):", IN_FIVE),
    Mutant("a step is launched ahead while a request waits", 0, RUN, " or self._slots.queue or", " or", (TOO_EARLY,)),
    Mutant("a step is launched ahead where rows may reach their limits", 0, RUN, "(most + flight.lengths + 1 <= limits)", "(most <= limits)", (TOO_EARLY,)),
    Mutant("a step is launched ahead of what its policy learns", 0, RUN, 'getattr(self.policy, "steady", False)', "True", (f"{SOON}::test_a_policy_that_learns_has_each_report_before_the_next_step",)),
    Mutant("an idle row is drafted for", 0, STEP, "lengths = lengths * sequences.active", "lengths = lengths * 1", (f"{SOON}::test_a_row_that_ended_at_its_limit_is_not_drafted_for_by_steps_ahead",)),
    Mutant("drafts of rows that ended meanwhile are counted", 0, RUN, "drafted=report.drafted * active", "drafted=report.drafted", (f"{SOON}::test_a_request_that_its_reader_ends_gives_no_more_and_the_others_all",)),
    Mutant("a follower shares the block in which its prompt ends", 0, PAGED, "seats.shared[seats.followers] // self._block", "-(-seats.shared[seats.followers] // self._block)", (TAKES,)),
    Mutant("a follower shares one block too few", 0, PAGED, "seats.shared[seats.followers] // self._block", "seats.shared[seats.followers] // self._block - 1", (TAKES,)),
    Mutant("the block in which a prompt ends is not copied", 0, PAGED, "pool[:, to] = pool[:, came]", "pool[:, to] = pool[:, to]", (TAKES,)),
    Mutant("the block in which a prompt ends is copied whole", 0, PAGED, "np.arange(first, first + n) for first, n in", "np.arange(first, first + size) for first, n in", (TAKES,)),
    Mutant("the block in which a prompt ends goes back to its source", 0, PAGED, "in (seats.source[rows], rows))", "in (rows, seats.source[rows]))", (TAKES,)),
    Mutant("shared blocks are written", 0, PAGED, "(names[self._blocks] == 1)", "(names[self._blocks] >= 1)", (NOBODY,)),
    Mutant("a leader with followers cannot be filled", 0, PAGED, " == 1) | beginning[:, None]", " == 1)", (LEADER,)),
    Mutant("a leader writes into shared blocks once it is filled", 0, PAGED, "        self._protect(np.zeros(len(self._blocks), dtype=bool))  # the sources are filled\n", "", (LEADER,)),
    Mutant("a block is free when one of its rows ends", 0, PAGED, "np.setdiff1d(np.arange(self._spare), blocks)", "np.setdiff1d(np.arange(self._spare), np.where(np.isin(blocks, self._blocks[~seats.going_on]), self._spare, blocks))", (OUTLIVE,)),
    Mutant("a block is never free again", 0, PAGED, "np.setdiff1d(np.arange(self._spare), blocks)", "np.setdiff1d(np.arange(self._spare), self._blocks)", (OUTLIVE,)),
    Mutant("a row that begins anew keeps its blocks", 0, PAGED, "seats.going_on[:, None] & (at < counts)", "at < counts", (OUTLIVE,)),
    Mutant("a row that shrinks keeps its blocks", 0, PAGED, "seats.going_on[:, None] & (at < counts)", "seats.going_on[:, None] & (at >= 0)", (CACHES,)),
    Mutant("rows in flight begin anew at every admission", 0, SLOTS, "self.extents.copy()  # rows", "0 * self.extents  # rows", (ROOM,)),
    Mutant("the pool has room for one prompt", 0, PAGED, "(full[prompts], total - full, total)", "(full[:1], total - full, total)", (POOL,)),
    Mutant("the pool counts the blocks of positions that are not shared", 0, PAGED, "(full[prompts], total - full, total)", "(full[prompts], -(-(room.limits - room.shared) // BLOCK), total)", (ROOM,)),
    Mutant("the pool has room for the prompt of every request", 0, PAGED, "full[prompts], total - full", "full, total - full", (POOL,)),
    Mutant("a write at -1 lands in the first block", 0, PAGED, "self.writable[self._row_index, positions // self._block]", "self.writable[self._row_index, positions.clamp(min=0) // self._block]", (CACHES,)),
    Mutant("a stop rule takes back the token at which it fires, if that was improbable", 12, DRAFTER, "lengths.clamp(max=i + 1), lengths)", "torch.where(own.gather(1, drafted[:, i : i + 1])[:, 0] < 0.3, lengths.clamp(max=i), lengths.clamp(max=i + 1)), lengths)", (RULED,)),
    Mutant("a drafted token below the threshold is no longer drafted", 12, DRAFTER, "torch.where(self.stops(own, i), lengths.clamp(max=i + 1), lengths)", "torch.where(own.gather(1, drafted[:, i : i + 1])[:, 0] < 0.4, lengths.clamp(max=i), lengths)", (RULED,)),
    Mutant("a stop rule is asked about the warped distribution", 0, DRAFTER, "own = logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)", "own = at", (STOP_LAWS,)),
    Mutant("a stop rule ends the drafts of the whole batch", 0, DRAFTER, "torch.where(self.stops(own, i), ", "torch.where(self.stops(own, i).any().expand(len(own)), ", (STOP_LAWS,)),
    Mutant("confidence asks for doubt", 0, "stop_rules/confidence.py", "amax(-1) < self.threshold", "amax(-1) < 1 - self.threshold", (RULES,)),
    Mutant("AdaEDL's bound has gamma outside its root", 0, "stop_rules/entropy.py", "math.sqrt(self.gamma) *", "self.gamma *", (RULES,)),
    Mutant("AdaEDL's bound has no root", 0, "stop_rules/entropy.py", ".sum(-1).sqrt()", ".sum(-1)", (RULES,)),
    Mutant("SVIP looks at the entropy itself", 0, "stop_rules/svip.py", ".sum(-1).sqrt()", ".sum(-1)", (RULES,)),
    Mutant("ngram proposes one token that is not committed", 0, NGRAM, "lens - 1 - at, 0)", "lens - at, 0)", (DRAFTERS,)),
    Mutant("ngram takes a row's own end for an occurrence", 0, NGRAM, "place < lens[:, None] - 1", "place < lens[:, None]", (DRAFTERS,)),
    Mutant("ngram prefers the shorter occurrence", 0, NGRAM, "torch.where(found >= 0, found, at)", "torch.where(at >= 0, at, found)", (DRAFTERS,)),
    Mutant("a replayed script is one token behind", 0, REPLAY, "places = (lens[:, None] +", "places = (lens[:, None] - 1 +", (DRAFTERS,)),
    Mutant("a script fits a row that is longer than it", 0, REPLAY, " & (lens[:, None] < self.ends)", "", (DRAFTERS,)),
    Mutant("a script fits by one token", 0, REPLAY, "same.all(2)", "same.any(2)", (DRAFTERS,)),
    Mutant("a model is not told what another drafter proposed", 0, ENSEMBLE, "            tell(drafter,", "            () and tell(drafter,", (FED, AFTER)),
    Mutant("a model is told one token too few of another's draft", 0, ENSEMBLE, "fed = (ahead < lengths[:, None])", "fed = (ahead < lengths[:, None] - 1)", (FED, AFTER)),
    Mutant("every part of an ensemble drafts for every row", 0, ENSEMBLE, "torch.where(draft.lengths > 0, 0, asked)", "asked", (DRAFTERS,)),
    Mutant("an ensemble reports no distribution for a sure token", 0, ENSEMBLE, ".scatter(2, known, 1.0)", "", (DRAFTERS,)),
    Mutant("a target drafts for itself without its norm", 0, "models/first_layers.py", "self.decoder.norm(self.decoder.through(tokens, positions, attend, self.count))", "self.decoder.through(tokens, positions, attend, self.count)", (FIRST,)),
    Mutant("a target drafts for itself with a layer less", 0, "models/first_layers.py", "attend, self.count))", "attend, self.count - 1))", (FIRST,)),
    Mutant("a kernel's splits of a product overlap", 0, "kernels/dense.py", "k_size, split * SIZE, SIZE", "k_size, split * SIZE // 2, SIZE", ("kernels/test_dense.py::test_a_product_of_few_rows_equals_its_twin_however_it_is_divided",)),
    Mutant("a kernel turns heads the other way", 0, "kernels/stream.py", "low * low_cos[None, :] + high * low_sin[None, :]", "low * low_cos[None, :] - high * low_sin[None, :]", ("kernels/test_rotary.py::test_turning_and_storing_at_once_equals_one_after_the_other",)),
    Mutant("a kernel commits what follows an end of sequence", 0, ROWS, "tl.load(accepted + row), first_end) + 1", "tl.load(accepted + row), WIDTH) + 1", (f"{ROWS_TEST}::test_a_committed_verdict_and_its_report_equal_their_twins",)),
    Mutant("a kernel reports tokens as accepted that were not committed", 0, ROWS, "tl.minimum(tl.load(accepted + row), count))", "tl.load(accepted + row))", (f"{ROWS_TEST}::test_a_committed_verdict_and_its_report_equal_their_twins",)),
    Mutant("a kernel feeds the target tokens beyond a row's own length", 0, ROWS, "fed = (i <= tl.load(lengths + row))", "fed = (i <= k)", (f"{ROWS_TEST}::test_what_is_fed_equals_its_twin",)),
    Mutant("a kernel keeps what follows a refused token", 0, ROWS, "tl.min(tl.where(own, WIDTH, i), 0)", "tl.sum(own.to(tl.int32), 0)", (f"{ROWS_TEST}::test_what_is_kept_equals_its_twin",)),
    Mutant("a fused block hands on its norm as the stream", 0, "models/fused.py", "return Stream(stream, product(activations(inner", "return Stream(normed.x, product(activations(inner", ("kernels/test_dense.py::test_fused_blocks_emit_the_oracles_tokens",)),
    Mutant("a kernel's top-p leaves out the token that reaches it", 0, "kernels/sample.py", "(found >= need).to(tl.int32), 0) - 1", "(found >= need).to(tl.int32), 0)", ("kernels/test_sample.py::test_a_warp_equals_its_twin",)),
    Mutant("a kernel's top-p is a share of the whole, not of top-k's tokens", 0, "kernels/sample.py", "tl.where(key >= counted.to(tl.int32), e, 0.0)", "e", ("kernels/test_sample.py::test_a_warp_equals_its_twin",)),
    Mutant("a kernel draws from the residual at a row's own length", 13, "kernels/verdict.py", "return accepted, accepted < length,", "return accepted, accepted < k,", ("kernels/test_sample.py::test_a_verdict_equals_its_twin", "kernels/test_sample.py::test_the_output_law_of_the_kernel_is_the_targets")),
    Mutant("a kernel's draw may be a token of probability zero", 0, "kernels/verdict.py", "(tl.cumsum(values, 0) > threshold) & (values > 0)", "tl.cumsum(values, 0) >= threshold", ("kernels/test_sample.py::test_a_draw_at_the_edge_of_a_cell_belongs_to_the_cell_above",)),
    Mutant("the report calls the verdict's tokens drafted", 9, STEP, "verdict.tokens, draft.tokens, floats", "verdict.tokens, verdict.tokens[:, :-1], floats", (REFUSED,)),
    Mutant("the report has the probabilities of the tokens before", 10, STEP, "draft.probs.gather(2, draft.tokens.to(torch.int64)[..., None])", "draft.probs.gather(2, draft.tokens.to(torch.int64).roll(1, 1)[..., None])", (DRAWN_FROM,)),
    Mutant("a bound counts passes that no row needs", 0, "engine/cost.py", "        if count:\n", "        if cost:\n", ("unit/test_cost.py::test_a_pass_that_no_active_row_needs_costs_nothing",)),
    Mutant("a bound counts the positions that were requested", 0, RUN, "((lens + report.drafted) * active).sum()", "((lens + flight.lengths) * active).sum()", ("unit/test_cost_of_runs.py::test_the_positions_of_a_step_are_by_the_lengths_drafted",)),
    Mutant("a bound leaves out an ensemble's passes that only fill", 0, "engine/bench.py", "fill_cost(scorer.decoder))", "None)", ("unit/test_cost_of_runs.py::test_bytes_and_flops_are_those_of_the_passes_that_ran",)),
    Mutant("timing a step's parts takes its rows on", 0, "engine/parts.py", "        rows.steps.copy_(steps)\n", "", (TIMED,)),
    Mutant("a cell is held against plain decoding at another batch", 0, "experiments/plain.py", '_OWN = ("draft",', '_OWN = ("batch", "draft",', (LIKEST,)),
    Mutant("every repeat is held against the first one of plain decoding", 0, "experiments/plain.py", "plain=of_plain[number]", "plain=of_plain[0]", (BY_REPEAT,)),
    Mutant("drafts of a repeat that did not end are kept", 0, "experiments/cells.py", "DraftLine.from_json).values if line.repeat in lines.repeats]", "DraftLine.from_json).values]", (ANEW,)),
    Mutant("repeats of rivals run back to back", 0, "experiments/turns.py", "groups.setdefault(work if len(pairs) == 1 else pairs, [])", "groups.setdefault(task.id, [])", ("unit/test_ablate_turns.py::test_every_turn_is_run_once_and_rivals_take_turns",)),
    Mutant("results of an edited class are kept", 0, "experiments/inputs.py", "cell.items() if then.get(name) != value]", "cell.items() if name not in then]", ("unit/test_ablate_changed.py::test_what_has_changed_is_refused_and_redone_on_request_in_the_cells_that_depend_on_it",)),
    Mutant("a fused draft's head forgets its scales", 0, "models/fused.py", "elif isinstance(decoder.head, Linear):", "else:", ("models/test_fused.py::test_a_quantized_head_stays_as_it_is",)),
    Mutant("a draft's head is quantized with its padding", 0, "loading.py", "return quantize_head(draft, quantization)", "return narrow(quantize_head(outline.load(device, dtype, quantization), quantization), size)", ("unit/test_pairs.py::test_a_quantized_draft_of_another_padding_drafts_as_one_of_the_same",)),
    Mutant("a tied head is quantized in its embedding's place", 0, "models/quantized.py", "decoder.embed.clone()", "decoder.embed.detach()", ("unit/test_quantized.py::test_a_quantization_may_overwrite_what_it_is_given",)),
    Mutant("splits are not counted as programs", 0, KERNEL, "in_flight(tiles * kv_heads * count * splits,", "in_flight(tiles * kv_heads * count,", ("kernels/test_kernels.py::test_what_is_in_flight_hangs_on_how_many_programs_share_a_multiprocessor_and_changes_nothing",)),
    # Text and requests.
    Mutant("a stop string is found when its text is certain", 0, TRANSCRIPT, "self._stream.ending(self._search.most_broken))", '"")', (STOPPED,)),
    Mutant("tokens after the one that completes a stop string belong to the completion", 0, TRANSCRIPT, "return count, piece", "return len(tokens), piece", (STOPPED,)),
    Mutant("what may be the beginning of a stop string is shown", 0, TRANSCRIPT, "self._give(self._length_held - self._search.begun)", "self._give(self._length_held)", (STOPPED,)),
    Mutant("a stop string that ends in another's beginning is not found", 0, "text/stops.py", "child.longest = child.longest or known.longest", "child.longest = child.longest", (STOPPED,)),
    Mutant("a text ends before the last stop string in it", 0, "text/stops.py", "end - state.longest < first", "end - state.longest > first", (STOPPED,)),
    Mutant("a broken run of bytes keeps its first characters", 0, "text/stream.py", "if not self.last:", "if self.characters:", (STOPPED,)),
    Mutant("broken bytes are certain up to any token", 0, "text/stream.py", "if text.startswith(begun) and len(begun) < len(text) else", "if begun else", (PARTS,)),
    Mutant("a repeated prompt has its first samples again", 0, "requests.py", "first = seen[tuple(prompt)]", "first = 0", (REPEATED,)),
    Mutant("a closed generation is out of time", 0, "generation.py", '"time" if self._out_of_time else', '"time" if self.run.over else', (ENDED,)),
    # What evaluations and reports say.
    Mutant("a budget's clocks are exchanged", 0, "evaluation/scores.py", 'self.from_start if clock == "start" else self.from_prefill', 'self.from_prefill if clock == "start" else self.from_start', ("unit/test_eval_scores.py::test_the_budget_runs_from_either_clock",)),
    Mutant("pass@k draws with replacement", 0, "evaluation/scores.py", "1.0 - math.comb(samples - passed, k) / math.comb(samples, k)", "1.0 - (1 - passed / samples) ** k", ("unit/test_eval_scores.py::test_pass_at_k_is_the_share_of_all_choices_of_k_samples_in_which_one_passes",)),
    Mutant("samples count that were cut off by the time budget", 0, "evaluation/scores.py", "if s.sample.finished and s.sample.seconds(clock) <= budget", "if s.sample.seconds(clock) <= budget", ("unit/test_eval_scores.py::test_first_is_the_finished_sample_with_the_highest_mean_log_probability_and_all_is_any",)),
    Mutant("a problem that lost a sample is taken for whole", 0, "evaluation/folder.py", "len(group := found.pop(line.task_id, [])) == line.end", "(group := found.pop(line.task_id, []))", ("unit/test_eval.py::test_a_problem_that_lost_a_sample_is_sampled_again",)),
    Mutant("a score is kept for another text", 0, "evaluation/evaluate.py", "return sample.task_id, sample.sample, digest(sample.text)", 'return sample.task_id, sample.sample, digest("")', ("unit/test_eval.py::test_scores_that_were_cut_off_or_are_of_another_text_are_made_again",)),
    Mutant("few differences that are alike are a certainty", 0, "evaluation/intervals.py", "student(np.append(b - a, [1.0, -1.0]), ", "student(np.append(b - a, [0.0, 0.0]), ", ("unit/test_report_evaluation.py::test_two_equal_methods_are_told_apart_no_more_often_than_is_claimed", "unit/test_report_evaluation.py::test_few_differences_that_are_alike_are_no_certainty_and_many_are")),
    Mutant("a setting wins over one that decodes something else", 0, "experiments/report/cells.py", "work = [axis for axis in axes if is_work(run.manifest.config, axis)]", "work: list[str] = []", ("unit/test_report_summary.py::test_only_settings_that_decode_the_same_are_rivals",)),
    Mutant("a lead that may be noise opens the page", 0, "experiments/report/summary.py", "return found is not None and found.clear", "return found is not None", ("unit/test_report_summary.py::test_the_summary_opens_with_nothing_that_may_be_noise",)),
    Mutant("a draft that nobody reached was rejected", 0, "results.py", "[a / r if r else None for", "[a / r if r else 0.0 for", ("unit/test_results.py::test_acceptance_at_a_position_is_among_the_drafts_accepted_up_to_it",)),
    Mutant("more is better of what is neither", 0, "experiments/report/compared.py", 'if self.metric.better == "neither":', 'if self.metric.better == "nothing":', ("unit/test_report_summary.py::test_a_difference_is_better_worse_or_neither_as_its_metric_says",)),
    # Drafts that are no distributions.
    *(
        Mutant(f"a draft is taken {what}", 0, VALIDITY, old, new, (INVALID,))
        for what, old, new in (
            ("though it is not finite", "+ NOT_FINITE * (counts & ~finite)", "+ 0 * (counts & ~finite)"),
            ("though a probability is negative", "+ NEGATIVE * (finite &", "+ 0 * (finite &"),
            ("though it does not sum to 1", "> TOLERANCE)).any(1)", "> 9)).any(1)"),
            ("though a token is beyond the vocabulary", "(tokens >= vocab))", "(tokens > vocab))"),
            ("though a token is negative", "((tokens < 0) |", "((tokens < -1) |"),
            ("though a length is negative", "NEGATIVE_LENGTH * ((own < 0)", "NEGATIVE_LENGTH * ((own < -99)"),
        )
    ),
    Mutant("what stands beyond a row's length is checked", 0, VALIDITY, "finite = counts & total.isfinite()", "counts = counts | True\n        finite = counts & total.isfinite()", (f"{INVALID}::test_what_stands_beyond_a_rows_length_changes_nothing",)),
    Mutant("a greedy draft of NaN is a one-hot", 0, "sampling.py", "keepdim=True).isfinite(), chosen, torch.nan)", "keepdim=True).isfinite(), chosen, chosen)", (f"{INVALID}::test_a_draft_model_that_is_not_finite_is_named",)),
    Mutant("a step whose report has flags is emitted", 0, RUN, "raise invalid_draft(self.step.drafter, found)", "pass", ("unit/test_steps_ahead.py::test_nothing_of_a_flagged_step_or_of_one_launched_ahead_is_emitted",)),
    Mutant("a wider target's ids are fed to the draft as they are", 0, "engine/scorer.py", "logits = self.scorer(tokens.clamp(max=self.known - 1)", "logits = self.scorer(tokens.clamp(max=self.vocab_size - 1)", (ONE_PADDING,)),
    Mutant("padding that the draft lacks has its share of the draft", 0, "engine/scorer.py", 'value=float("-inf"))', "value=0.0)", (f"{PAIRS}::test_the_vocabulary_is_the_targets_with_its_padding_with_a_draft_and_without",)),
    # What generated programs may do.
    Mutant("a file is truncated by who opens it to read", 0, "evaluation/syscalls.py", "ACCESSES = 0o3, (0o1, 0o2)", "ACCESSES = 0o3, (0o0, 0o1, 0o2)", ("unit/test_sandbox_strengths.py::test_a_file_that_may_be_read_cannot_be_truncated",)),
    Mutant("a file is opened without any access", 0, "evaluation/syscalls.py", "ACCESSES = 0o3, (0o1, 0o2)", "ACCESSES = 0o3, (0o1, 0o2, 0o3)", ("unit/test_sandbox_strengths.py::test_a_file_that_may_be_read_cannot_be_truncated",)),
    Mutant("Landlock does not handle truncation", 0, "evaluation/confine.py", "{1: 13, 2: 14, 3: 15, 5: 16}", "{1: 13, 2: 14}", ("unit/test_sandbox_strengths.py::test_landlock_alone_keeps_what_may_be_read_as_it_is",)),
    Mutant("a checker that says nothing has judged", 0, "evaluation/sandbox.py", 'if "layers" not in said:', 'if False:', ("unit/test_sandbox.py::test_a_checker_that_cannot_start_is_an_error_and_no_score",)),
    Mutant("the process with the program is not waited for", 0, "evaluation/sandbox.py", "os.waitpid(-process.pid, 0)", "raise ChildProcessError", ("unit/test_sandbox.py::test_no_process_is_left_to_whom_orphans_come",)),
)  # fmt: skip


def select(only: list[str] | None) -> tuple[Mutant, ...]:
    """The mutants whose name contains one of `only`; all without it."""
    return tuple(mutant for mutant in MUTANTS if only is None or any(part.lower() in mutant.name.lower() for part in only))


if __name__ == "__main__":
    from support.mutation import main

    raise SystemExit(main())
