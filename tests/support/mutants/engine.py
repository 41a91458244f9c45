"""Defects of the engine: slots, steps, graphs, accounts."""

from support.mutants.killers import (
    ACCOUNT,
    ALONE,
    ATTENTION,
    DRAWN_FROM,
    EOS,
    EQUAL,
    IMPOSSIBLE,
    LAYOUTS,
    LIMIT,
    LOGPROBS,
    LOSSES,
    MATRIX,
    ONE_PADDING,
    PAIRS,
    REFUSED,
    ROOM,
    SHARED,
    SOON,
    TIMED,
    TOO_EARLY,
    WARPS,
    WITNESS,
)
from support.mutants.mutant import Mutant

COST = "unit/test_cost_of_runs.py"
MUTANTS = (
    Mutant(
        "the target's window has the positions of the longest row",
        "ops.batch_state.window",
        "position + ahead",
        "position.amax() + ahead",
        (MATRIX,),
        trap=4,
    ),
    Mutant(
        "the window starts after the last committed token",
        "ops.batch_state.window",
        "position + ahead",
        "position + ahead + 1",
        (MATRIX,),
        trap=7,
    ),
    Mutant(
        "the last drafted token is not fed to the target",
        "ops.batch_state.window",
        "ahead <= draft.lengths[:, None]",
        "ahead < draft.lengths[:, None].clamp(min=1)",
        (MATRIX,),
        trap=7,
    ),
    Mutant(
        "after plain steps the draft is fed one token too few",
        "EngineRun._caught_up",
        "min(self.behind, self.schedule.most_generated) + 2",
        "min(self.behind, self.schedule.most_generated) + 1",
        (WITNESS,),
        trap=8,
    ),
    Mutant(
        "after plain steps the draft is fed as many columns as there were steps",
        "EngineRun._caught_up",
        "min(self.behind, self.schedule.most_generated) + 2",
        "self.behind + 2",
        (f"{COST}::test_after_many_steps_without_drafts_a_drafter_is_fed_what_its_rows_have",),
    ),
    Mutant(
        "positions of a user's drafter are counted as they are at the end of the step",
        "PassLog.add",
        "window.positions.clone() if self.copies else window.positions",
        "window.positions",
        (
            f"{COST}::test_positions_that_a_drafter_writes_to_after_the_pass_are_counted_as_they_were",
        ),
    ),
    Mutant(
        "the parts of an ensemble are taken for ours",
        "drafters.ensemble.is_ours",
        "method.methods if isinstance(method, Ensemble) else ()",
        "()",
        (
            f"{COST}::test_positions_that_a_drafter_writes_to_after_the_pass_are_counted_as_they_were",
        ),
    ),
    Mutant(
        "after plain steps the draft is not told what was committed",
        "EngineRun._launched",
        "self._caught_up(plan.span) if plan.k and self.behind else ()",
        "self._caught_up(plan.span) if plan.k and self.behind > 99 else ()",
        (EQUAL,),
        trap=8,
    ),
    Mutant(
        "the target is not warped",
        "SpeculativeStep.judged",
        "self.warp(logits, sequences.history(draft.tokens))",
        "logits.softmax(-1)",
        (MATRIX,),
        trap=10,
    ),
    Mutant(
        "all drafted tokens of a step are drawn with one uniform",
        "OwnDraw.__call__",
        "noise.draft[:, i]",
        "noise.draft[:, 0]",
        (
            LOSSES,
            WARPS,
        ),
        trap=11,
    ),
    Mutant(
        "the rows of a batch share their noise",
        "SpeculativeStep.on_device",
        "sequences.keys",
        "sequences.keys[:1].expand(len(lengths))",
        (ALONE,),
        trap=11,
    ),
    Mutant(
        "no row drafts when one has length 0",
        "Schedule.plan",
        "k = self.step.draft_length(max(lengths))",
        (
            "if not all(n for n, request in zip(lengths, self.serving) if request >= 0):\n"
            "    lengths = [0] * len(lengths)\n"
            "k = self.step.draft_length(max(lengths))"
        ),
        (
            ALONE,
            LIMIT,
        ),
        trap=14,
    ),
    Mutant(
        "a row at its limit shortens the others' drafts",
        "Schedule.plan",
        "limit - tokens - 1",
        "min(m - n - 1 for m, n, r in zip(self.limits, self.lens, self.serving) if r >= 0)",
        (LIMIT,),
        trap=16,
    ),
    Mutant(
        "the report counts accepted tokens that were not committed",
        "StepReport.accepted",
        "verdict if verdict < emitted else emitted",
        "verdict",
        (EOS,),
        trap=17,
    ),
    Mutant(
        "idle rows report drafts",
        "ops.batch_state.pack_report",
        "(rows.lens, rows.active, draft.lengths, verdict.accepted, emitted, flags)",
        "(rows.lens, rows.active, draft.lengths.clamp(min=1), verdict.accepted, emitted, flags)",
        (ACCOUNT,),
        trap=17,
    ),
    Mutant(
        "the padding of a prefill is written",
        "prefill.padded",
        "both[1] = -1",
        "both[1] = np.arange(width)",
        (
            LAYOUTS,
            WITNESS,
        ),
        trap=18,
    ),
    Mutant(
        "a prompt's last but one token is not fed",
        "prefill.padded",
        "both[0, row, :fed], both[1, row, :fed] = prompt[:-1], np.arange(fed)",
        "both[0, row, :fed], both[1, row, : fed - (fed > 0)] = (\n"
        "    prompt[:-1], np.arange(fed - (fed > 0))\n)",
        (WITNESS,),
    ),
    Mutant(
        "a later window of a prefill starts again at 0",
        "prefill.feed_prompts",
        "both[:, :, first:last]",
        "np.stack([both[0][:, first:last], both[1][:, : last - first]])",
        (WITNESS,),
    ),
    Mutant(
        "an idle row lends its prompt",
        "Slots.admit",
        (
            "{tuple(all_requests[r].prompt): row for row, r in "
            "reversed(list(enumerate(self.requests))) if r >= 0}"
        ),
        (
            "{tuple(all_requests[r].prompt): row for row, r in "
            "reversed(list(enumerate(self.requests)))}"
        ),
        (
            SHARED,
            WITNESS,
        ),
    ),
    Mutant(
        "a prompt is copied from the wrong row",
        "Slots.admit",
        "donors[tuple(all_requests[request].prompt)]",
        "0 * donors[tuple(all_requests[request].prompt)]",
        (
            SHARED,
            WITNESS,
        ),
    ),
    Mutant(
        "a new prompt inherits the steps of the last",
        "Slots._start",
        "s.steps[index] = 0",
        "",
        (ALONE,),
    ),
    Mutant(
        "a new prompt inherits the policy's state",
        "EngineRun._admitted",
        "self.policy.reset(state, admitted)",
        "self.policy.reset(state, admitted[:0])",
        (ALONE,),
    ),
    Mutant(
        "the span does not cover the window",
        "Schedule.plan",
        "self.step.span(longest, self.capacity)",
        "self.step.span(max(longest - max(lengths) - 1, 1), self.capacity)",
        (
            WITNESS,
            LAYOUTS,
        ),
    ),
    Mutant(
        "a prefill's span is one window short",
        "prefill.feed_prompts",
        "shapes.bucket(last, rows.capacity)",
        "shapes.bucket(max(first, 1), rows.capacity)",
        (
            WITNESS,
            LAYOUTS,
        ),
    ),
    Mutant(
        "every layer attends by the first layer's rule",
        "CachedAttend._rule",
        "self.rules[layer]",
        "self.rules[0]",
        (ATTENTION,),
    ),
    Mutant(
        "the target's history lacks the drafted tokens",
        "SpeculativeStep.judged",
        "sequences.history(draft.tokens)",
        "sequences.history(draft.tokens[:, :0])",
        (WARPS,),
    ),
    Mutant(
        "log-probabilities are of the token before",
        "ops.sampling.token_logprobs",
        "torch.where(known, tokens, 0)",
        "torch.where(known, tokens.roll(1, 1), 0)",
        (LOGPROBS,),
    ),
    Mutant(
        "a step is launched ahead while a request waits",
        "Schedule.plan_ahead",
        "self.waiting",
        "False",
        (TOO_EARLY,),
    ),
    Mutant(
        "a step is launched ahead where rows may reach their limits",
        "Schedule.plan_ahead",
        "most + length + 1",
        "most",
        (TOO_EARLY,),
    ),
    Mutant(
        "a step is launched ahead of what its policy learns",
        "EngineRun._launched_ahead",
        "getattr(self.policy, 'constant_length', False)",
        "True",
        (f"{SOON}::test_a_policy_that_learns_has_each_report_before_the_next_step",),
    ),
    Mutant(
        "an idle row is drafted for",
        "SpeculativeStep.drafted",
        "sequences.active",
        "1",
        (f"{SOON}::test_a_step_drafts_nothing_for_an_idle_row_that_has_room",),
    ),
    Mutant(
        "drafts of rows that ended meanwhile are counted",
        "EngineRun._collected",
        "min(serving) < 0",
        "False",
        (f"{SOON}::test_a_request_that_its_reader_ends_gives_no_more_and_the_others_all",),
    ),
    Mutant(
        "rows in flight begin again at every admission",
        "Slots.admit",
        "(np.arange(len(self.requests)), self.capacities.copy())",
        "(np.arange(len(self.requests)), 0 * self.capacities)",
        (ROOM,),
    ),
    Mutant(
        "the report calls the verdict's tokens drafted",
        "ops.batch_state.pack_report",
        "(numbers, verdict.tokens, draft.tokens, floats.view(torch.int64))",
        "(numbers, verdict.tokens, verdict.tokens[:, :-1], floats.view(torch.int64))",
        (REFUSED,),
        trap=9,
    ),
    Mutant(
        "the report has the probabilities of the tokens before",
        "drawn_probs",
        "draft.tokens.to(torch.int64)",
        "draft.tokens.to(torch.int64).roll(1, 1)",
        (DRAWN_FROM,),
        trap=10,
    ),
    Mutant(
        "a bound counts passes that no row needs",
        "work_of_passes",
        (
            "if count:\n"
            "    moved += cost.model.bytes_read(count) + cost.keys(tokens[:, i], visible[:, i])\n"
            "    flops += count * cost.model.flops_per_token\n"
            "    flops_kept += of_text * cost.model.flops_per_token"
        ),
        (
            "if cost:\n"
            "    moved += cost.model.bytes_read(count) + cost.keys(tokens[:, i], visible[:, i])\n"
            "    flops += count * cost.model.flops_per_token\n"
            "    flops_kept += of_text * cost.model.flops_per_token"
        ),
        ("unit/test_cost.py::test_a_pass_that_no_active_row_needs_costs_nothing",),
    ),
    Mutant(
        "a bound counts the positions that were requested",
        "EngineRun._reported",
        "(lens + drafted) * active",
        "(lens + np.array(plan.lengths)) * active",
        ("unit/test_cost_of_runs.py::test_the_positions_of_a_step_are_by_the_lengths_drafted",),
    ),
    Mutant(
        "a bound leaves out an ensemble's passes that only fill",
        "RunContext.draft",
        "fill_cost(scorer.decoder)",
        "None",
        ("unit/test_cost_of_runs.py::test_bytes_and_flops_are_those_of_the_passes_that_ran",),
    ),
    Mutant(
        "timing a step's parts takes its rows on",
        "_parts_of",
        "rows.steps.copy_(steps)",
        "",
        (TIMED,),
    ),
    Mutant(
        "a joint verdict relies on distributions that are none",
        "checks.check_emitted",
        "impossible & judged",
        "impossible & emitted",
        (f"{IMPOSSIBLE}::test_a_distribution_of_the_target_that_is_none_changes_no_law",),
    ),
    Mutant(
        "a step whose report has flags is emitted",
        "checks.check_draft",
        "raise invalid_draft(step.drafter, found)",
        "pass",
        (f"{SOON}::test_nothing_of_a_flagged_step_or_of_one_launched_ahead_is_emitted",),
    ),
    Mutant(
        "a wider target's ids are fed to the draft as they are",
        "WidenedScorer._known",
        "self.known - 1",
        "self.vocab_size - 1",
        (ONE_PADDING,),
    ),
    Mutant(
        "padding that the draft lacks has its share of the draft",
        "WidenedScorer.__call__",
        "F.pad(scored.logits, (0, missing), value=float('-inf'))",
        "F.pad(scored.logits, (0, missing), value=0.0)",
        (f"{PAIRS}::test_the_vocabulary_is_the_targets_with_its_padding_with_a_draft_and_without",),
    ),
)
