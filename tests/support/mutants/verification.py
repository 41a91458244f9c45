"""Defects of the verifiers."""

from support.mutants.killers import (
    ENUMERATION,
    IMPOSSIBLE,
    LOSSES,
    ONE_SEED,
    REJECTED,
    VECTORS,
    WRONG,
)
from support.mutants.mutant import Mutant

PASSED = "leading(accept < accept_probs(draft, target_probs), draft.lengths)"

MUTANTS = (
    Mutant(
        "the bonus comes from the draft",
        "next_probs",
        "return torch.where(residual.sum(1, keepdim=True) > 0, residual, target)",
        (
            "bonus = (accepted == draft.lengths)[:, None] & (draft.lengths > 0)[:, None]\n"
            "return torch.where(bonus, draft_after(draft, target, accepted), "
            "torch.where(residual.sum(1, keepdim=True) > 0, residual, target))"
        ),
        (ENUMERATION,),
        trap=1,
    ),
    Mutant(
        "acceptance is cut to the batch's minimum",
        "verification.rejection",
        PASSED,
        f"{PASSED}.amin().expand(len(accept))",
        (ENUMERATION,),
        trap=3,
    ),
    Mutant(
        "the first drafted token is not verified",
        "verification.rejection",
        "accept < accept_probs(draft, target_probs)",
        "torch.where(torch.arange(k) == 0, True, accept < accept_probs(draft, target_probs))",
        (ENUMERATION,),
        trap=9,
    ),
    Mutant(
        "a token is judged by the distribution after it",
        "accept_probs",
        "target_probs[:, :index.shape[1]]",
        "target_probs[:, 1:]",
        (WRONG, ENUMERATION),
        trap=9,
    ),
    Mutant(
        "the rejected token is emitted too",
        "verification.emit",
        "Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), accepted)",
        (
            "Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), torch.where(accepted < "
            "draft.lengths, accepted + 1, accepted))"
        ),
        (ENUMERATION,),
        trap=9,
    ),
    Mutant(
        "a row's boundary uses the residual",
        "next_probs",
        "accepted < draft.lengths",
        "accepted < draft.tokens.shape[1]",
        (ENUMERATION,),
        trap=13,
    ),
    Mutant(
        "a row of length 0 is given one token when others draft",
        "verification.rejection",
        PASSED,
        PASSED.replace("lengths", "lengths.clamp(min=1)"),
        (ENUMERATION,),
        trap=14,
    ),
    Mutant(
        "the residual keeps the rejected token of a deterministic draft",
        "draft_after",
        "torch.zeros_like(like).scatter(1, draft.tokens[rows, at][:, None], 1)",
        "torch.zeros_like(like)",
        (ENUMERATION,),
    ),
    Mutant(
        "a deterministic token is always accepted",
        "accept_probs",
        "return target",
        "return torch.ones_like(target)",
        (ENUMERATION,),
    ),
    Mutant(
        "the residual is the distance",
        "next_probs",
        "(target - rejected).clamp(min=0)",
        "(target - rejected).abs()",
        (ENUMERATION,),
    ),
    Mutant(
        "the residual is drawn at the next slot's noise",
        "verification.emit",
        "noise.residual.gather(1, accepted[:, None])",
        "noise.residual.gather(1, (accepted[:, None] + 1).clamp(max=draft.tokens.shape[1]))",
        (ENUMERATION,),
    ),
    Mutant(
        "block verification forgets how improbable the prefix was",
        "Block.__call__",
        "next_probs(draft, weighted, accepted)",
        "next_probs(draft, target_probs, accepted)",
        (ENUMERATION,),
    ),
    Mutant(
        "block verification stops at the first prefix that fails",
        "Block.__call__",
        "torch.where(passes, length, 0).amax",
        "passes.cumprod(1).sum",
        (ENUMERATION,),
    ),
    Mutant(
        "block verification judges a row's end like its middle",
        "pass_probs",
        "torch.where(length == draft.lengths[:, None], joint[:, 1:], before)",
        "before",
        (ENUMERATION,),
    ),
    Mutant(
        "block verification accepts a prefix with its joint probability",
        "pass_probs",
        "torch.where(length == draft.lengths[:, None], joint[:, 1:], before)",
        "joint[:, 1:]",
        (ENUMERATION,),
    ),
    Mutant(
        "a prefix of the block gains what a token has over one",
        "prefix_probs",
        "(probs[i] * ratio[:, i]).clamp(max=1)",
        "probs[i] * ratio[:, i]",
        (ENUMERATION,),
    ),
    Mutant(
        "block verification keeps the deterministic token in its residual",
        "pass_probs",
        "weighted[:, 1:k].scatter(2, draft.tokens[:, 1:, None], 0)",
        "weighted[:, 1:k]",
        (ENUMERATION,),
    ),
    Mutant(
        "block verification is rejection",
        "Block.__call__",
        "k = draft.tokens.shape[1]",
        (
            "from bass.verifiers.rejection import Rejection\nreturn Rejection()(draft, "
            "target_probs, noise)\nk = draft.tokens.shape[1]"
        ),
        (ENUMERATION,),
    ),
    Mutant(
        "coupled noise belongs to the slot and not to the position",
        "Coupled.__call__",
        "exponential_race(target_probs, noise.keys, noise.first)",
        "exponential_race(target_probs, noise.keys, 0 * noise.first)",
        (ONE_SEED,),
    ),
    Mutant(
        "coupled verification takes the noise of the step",
        "Coupled.__call__",
        "exponential_race(target_probs, noise.keys, noise.first)",
        "exponential_race(target_probs, (noise.uniforms[:, 0, 3] * 2.0 ** 52).long(), noise.first)",
        (ONE_SEED,),
    ),
    Mutant(
        "coupled verification emits the drafted token after a difference",
        "Coupled.__call__",
        "tokens = exponential_race(target_probs, noise.keys, noise.first)",
        (
            "tokens = exponential_race(target_probs, noise.keys, noise.first)\ntokens[:, :-1] = "
            "draft.tokens"
        ),
        (ONE_SEED,),
    ),
    Mutant(
        "exact match goes on after a difference",
        "ops.batch_state.leading",
        "(kept & counts).cumprod(1)",
        "kept & counts",
        (ENUMERATION,),
    ),
    Mutant(
        "exact match goes on beyond a row's length",
        "ops.batch_state.leading",
        "(kept & counts).cumprod",
        "kept.cumprod",
        (ENUMERATION,),
    ),
    Mutant(
        "exact match draws with the draft's noise",
        "ExactMatch.__call__",
        "noise.residual",
        "noise.draft",
        (ENUMERATION,),
    ),
    Mutant(
        "typical acceptance claims to be lossless",
        "Typical",
        "lossless: ClassVar[bool] = False",
        "lossless: ClassVar[bool] = True",
        (LOSSES,),
    ),
    Mutant(
        "typical acceptance knows no entropy",
        "typical",
        "delta * (-torch.special.entr(judged).sum(2)).exp()",
        "delta + 0 * judged.sum(2)",
        (VECTORS,),
    ),
    Mutant(
        "synthetic acceptance is of the position after",
        "Synthetic.__call__",
        "noise.accept[:, i] < self.rate(i)",
        "noise.accept[:, i] < self.rate(i + 1)",
        (VECTORS,),
    ),
    Mutant(
        "synthetic acceptance looks at the target",
        "Synthetic.__call__",
        "noise.accept[:, i] < self.rate(i)",
        "(noise.accept[:, i] < self.rate(i)) & (target_probs[:, i].amax(-1) > 0.4)",
        (VECTORS,),
    ),
    Mutant(
        "a warp's distributions are not looked at",
        "batch_state.commit_and_report",
        "with_target_flags(flags, probs, judged)",
        "flags",
        (f"{IMPOSSIBLE}::test_a_warp_that_makes_no_distribution_of_finite_logits_is_named",),
    ),
    Mutant(
        "a joint verdict relies on distributions that a warp made none",
        "batch_state.commit_and_report",
        "draft.lengths + 1",
        "emitted",
        (f"{IMPOSSIBLE}::test_a_distribution_of_the_target_that_is_none_changes_no_law",),
    ),
    Mutant(
        "a distribution of the target that decides nothing ends the run",
        "batch_state.commit_and_report",
        "torch.where(emitted > 0, draft.lengths + 1, 0) if jointly else emitted",
        "torch.where(emitted > 0, draft.lengths + 1, 0) if jointly else emitted + 1",
        (f"{IMPOSSIBLE}::test_a_distribution_of_the_target_that_is_none_changes_no_law",),
    ),
    Mutant(
        "a step in which the target is no distribution is emitted",
        "run.check_emitted",
        "raise invalid_target(step.warp, step.verifier, found)",
        "pass",
        (f"{IMPOSSIBLE}::test_a_warp_that_makes_no_distribution_of_finite_logits_is_named",),
    ),
    Mutant(
        "a target that excludes tokens is called damaged",
        "run.check_emitted",
        "impossible & judged",
        "~np.isfinite(report.text.logprobs) & judged",
        (f"{IMPOSSIBLE}::test_a_target_may_exclude_tokens",),
    ),
    Mutant(
        "the log-probability of an excluded token is infinite",
        "EngineRun._reported",
        "np.maximum(text.logprobs, EXCLUDED)",
        "text.logprobs",
        (f"{IMPOSSIBLE}::test_a_target_may_exclude_tokens",),
    ),
    Mutant(
        "a verdict of more than was drafted passes where a limit cuts it",
        "run.check_counts",
        "zip(serving, report.verdict_accepted, report.drafted, strict=True)",
        "zip(serving, report.accepted, report.drafted, strict=True)",
        (
            "unit/test_broken_strategies.py::test_a_verdict_of_more_than_all_drafted_tokens_that_a_limit_or_an_end_cuts",
        ),
    ),
    Mutant(
        "a verdict may accept tokens that were not drafted",
        "run.check_prefix",
        "accepted & ~same",
        "accepted & False",
        ("unit/test_broken_strategies.py::test_an_answer_that_is_no_verdict",),
    ),
    Mutant(
        "every draft is drawn with the noise of positions",
        "RunContext.__init__",
        "shared_draw if parts.verifier.coupled else own_draw",
        "shared_draw",
        (REJECTED,),
        trap=11,
    ),
)
