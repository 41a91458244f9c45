"""Defects of sampling, noise and records."""

from support.mutants.killers import (
    ACCOUNT,
    ENUMERATION,
    EOS,
    INVALID,
    LIMIT,
    MATRIX,
    NOISE,
    ONE_SEED,
    PAD_EOS,
    RECORDS,
    SAMPLING,
    STEPS,
    TWO_ROWS,
)
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "rows advance by the batch's minimum",
        "ops.batch_state.commit",
        (
            "emitted = torch.minimum(torch.minimum(verdict.accepted, first_end) + 1, rows.limits - "
            "rows.lens) * rows.active"
        ),
        (
            "emitted = torch.minimum(torch.minimum(verdict.accepted, first_end) + 1, rows.limits - "
            "rows.lens) * rows.active\n"
            "emitted = torch.where(rows.active, emitted[rows.active].min() if rows.active.any() "
            "else 0, 0)"
        ),
        (TWO_ROWS,),
        trap=3,
    ),
    Mutant(
        "rows advance by the whole window",
        "ops.batch_state.commit",
        "rows.lens.add_(emitted)",
        (
            "rows.lens.copy_(torch.where(rows.active, torch.minimum(rows.lens + window, "
            "rows.limits), "
            "rows.lens))"
        ),
        (RECORDS, MATRIX),
        trap=6,
    ),
    Mutant(
        "the residual uses the draft's noise",
        "Noise.residual",
        "self.uniforms[..., 2]",
        "self.uniforms[..., 0]",
        (ENUMERATION,),
        trap=11,
    ),
    Mutant(
        "acceptance uses the draft's noise",
        "Noise.accept",
        "self.uniforms[..., 1]",
        "self.uniforms[..., 0]",
        (ENUMERATION,),
        trap=11,
    ),
    Mutant(
        "the residual uses the noise of acceptance",
        "Noise.residual",
        "self.uniforms[..., 2]",
        "self.uniforms[..., 1]",
        (ENUMERATION,),
        trap=11,
    ),
    Mutant(
        "all slots of a step draw with one uniform",
        "step_noise",
        "uniforms(keys, steps, k + 1)",
        "uniforms(keys, steps, 1).expand(-1, k + 1, -1)",
        (NOISE,),
        trap=11,
    ),
    Mutant(
        "a row's steps are not counted",
        "ops.batch_state.commit",
        "rows.steps.add_(rows.active)",
        "",
        (STEPS,),
        trap=11,
    ),
    Mutant(
        "an end of sequence counts only as the last token",
        "ops.batch_state.commit",
        "(tokens[..., None] == rows.end_tokens[:, None]).any(-1)",
        "(tokens[..., None] == rows.end_tokens[:, None]).any(-1)"
        " & (offsets == verdict.accepted[:, None])",
        (EOS,),
        trap=15,
    ),
    Mutant(
        "an end of sequence beyond the accepted tokens counts",
        "ops.batch_state.commit",
        "first_end >= emitted",
        "~ends.any(1)",
        (PAD_EOS, RECORDS),
        trap=15,
    ),
    Mutant(
        "an end of sequence is left out",
        "ops.batch_state.commit",
        "torch.minimum(verdict.accepted, first_end) + 1",
        "torch.minimum(verdict.accepted + 1, first_end)",
        (EOS,),
        trap=15,
    ),
    Mutant(
        "finished rows go on emitting",
        "ops.batch_state.commit",
        (
            "torch.minimum(torch.minimum(verdict.accepted, first_end) + 1, rows.limits - "
            "rows.lens) * "
            "rows.active"
        ),
        "torch.minimum(torch.minimum(verdict.accepted, first_end) + 1, rows.limits - rows.lens)",
        (RECORDS,),
        trap=15,
    ),
    Mutant(
        "the smallest limit of the batch cuts every row",
        "ops.batch_state.commit",
        "rows.limits - rows.lens",
        (
            "(rows.limits[rows.active].amin() - rows.lens if rows.active.any() else "
            "rows.limits).clamp(min=0)"
        ),
        (LIMIT, ACCOUNT),
        trap=16,
    ),
    Mutant(
        "one finished row ends the batch",
        "ops.batch_state.commit",
        "rows.active.logical_and_",
        "rows.active.logical_and_(((rows.lens < rows.limits) | ~rows.active).all()).logical_and_",
        (LIMIT,),
        trap=16,
    ),
    Mutant(
        "a row stops one token after its limit",
        "ops.batch_state.commit",
        "rows.lens < rows.limits",
        "rows.lens <= rows.limits",
        (RECORDS,),
    ),
    Mutant(
        "a commit leaves out the verifier's own token",
        "ops.batch_state.commit",
        "torch.minimum(verdict.accepted, first_end) + 1",
        "torch.minimum(verdict.accepted, first_end)",
        (RECORDS,),
    ),
    Mutant(
        "a commit at a row's end overwrites its last token",
        "ops.batch_state.commit",
        "torch.where(offsets < emitted[:, None], rows.lens[:, None] + offsets, rows.capacity)",
        "torch.where(offsets < emitted[:, None], rows.lens[:, None] + offsets, rows.capacity - 1)",
        (RECORDS,),
    ),
    Mutant(
        "the noise knows only half of a key",
        "ops.noise.uniforms",
        "keys >> 32 & _MASK",
        "keys & _MASK",
        (NOISE,),
    ),
    Mutant("the noise has nine rounds", "philox", "10", "9", (NOISE,)),
    Mutant(
        "a draw at a cell's edge goes down",
        "ops.sampling.draw",
        "torch.searchsorted(running, threshold, right=True)",
        "torch.searchsorted(running, threshold, right=False)",
        (SAMPLING,),
    ),
    Mutant(
        "top-p leaves out the token that reaches it",
        "top_p_floor",
        "(before < top_p).sum(-1, keepdim=True)",
        "((before < top_p).sum(-1, keepdim=True) - 1).clamp(min=0)",
        (SAMPLING,),
    ),
    Mutant(
        "the penalty counts a window's later tokens",
        "ops.sampling.counts",
        "earlier[:, columns + 1 - window:]",
        "earlier[:, columns + 1 - window:].amax(1, keepdim=True).expand(-1, window, -1)",
        (SAMPLING,),
    ),
    Mutant(
        "a logit's penalty lags one drafted token",
        "ops.sampling.counts",
        "F.one_hot(history.drafted, vocab).cumsum(1)",
        "F.one_hot(history.drafted, vocab).cumsum(1) - F.one_hot(history.drafted, vocab)",
        (SAMPLING,),
    ),
    Mutant(
        "a penalty of generated tokens counts the prompt",
        "ops.sampling.edited",
        "counts(logits, history, prompt_lens)",
        "counts(logits, history, torch.zeros_like(prompt_lens))",
        (SAMPLING,),
    ),
    Mutant(
        "an end token comes one token too early",
        "ops.sampling.edited",
        "generated[..., None] < least",
        "generated[..., None] + 1 < least",
        (SAMPLING,),
    ),
    Mutant(
        "a row is cut by the options of the row next to it",
        "restricted",
        "torch.where(used, keep_from(probs, floor), probs)",
        "keep_from(probs, floor)",
        (
            "laws/test_2_invariance.py::test_a_request_with_options_of_its_own_gets_the_same_tokens_in_any_batch",
        ),
    ),
    Mutant(
        "a row keeps the options of the request before",
        "Schedule._start",
        "(numbers[:, 0], ends, sampling)",
        "(numbers[:, 0], ends, s.sampling[index])",
        (
            "laws/test_2_invariance.py::test_a_request_with_options_of_its_own_gets_the_same_tokens_in_any_batch",
        ),
    ),
    Mutant(
        "draft and target differ in their penalties",
        "Chain.drawn",
        "sequences.history(drafted[:, :i])",
        "sequences.history(drafted[:, :0])",
        ("laws/test_1_greedy.py::test_a_draft_equal_to_the_target_is_always_accepted",),
    ),
    Mutant(
        "coupled noise is that of the steps again",
        "_POSITIONS",
        "_POSITIONS = 1",
        "_POSITIONS = 0",
        (ONE_SEED,),
    ),
    Mutant(
        "four neighbouring tokens share their coupled noise",
        "exponentials",
        "words.reshape(len(keys), slots, -1)",
        "words.reshape(len(keys), slots, -1)[..., ::4].repeat_interleave(4, -1)",
        (ONE_SEED,),
    ),
    Mutant(
        "the race is won by the sum",
        "exponential_race",
        "exponentials(keys, first, probs.shape[1], probs.shape[2]) / probs",
        "exponentials(keys, first, probs.shape[1], probs.shape[2]) - probs",
        (ONE_SEED,),
    ),
    Mutant(
        "a greedy draft of NaN is a one-hot",
        "most_probable_token",
        "torch.where(logits.amax(-1, keepdim=True).isfinite(), chosen, torch.nan)",
        "torch.where(logits.amax(-1, keepdim=True).isfinite(), chosen, chosen)",
        (f"{INVALID}::test_a_draft_model_that_is_not_finite_is_named",),
    ),
    Mutant(
        "large logits overflow at a low temperature",
        "ops.sampling.warp",
        "logits - logits.amax(-1, keepdim=True)",
        "logits",
        (SAMPLING,),
    ),
)
