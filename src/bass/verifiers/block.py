"""Block verification (Sun et al., 2024): accepts the longest prefix of a draft that passes a joint
test.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Verifier
from bass.ops.verification import emit, next_probs
from bass.records import Draft, Noise, Verdict


@final
@dataclass(frozen=True)
class Block(Verifier):
    """Test every prefix of a row's draft with its own uniform, and accept the longest that passes.

    In expectation it accepts at least as many tokens as `Rejection`, and the most of any lossless
    verifier of a single draft.
    """

    lossless: ClassVar[bool] = True
    paper: ClassVar[str] = "Sun et al., 2024"

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        k = draft.tokens.shape[1]
        if k == 0:
            return emit(draft, torch.zeros_like(draft.lengths), target_probs[:, 0], noise)
        joint = prefix_probs(draft, target_probs)
        weighted = joint.to(target_probs.dtype)[..., None] * target_probs
        length = torch.arange(1, k + 1, device=target_probs.device)
        passes = (noise.accept[:, :k] < pass_probs(draft, joint, weighted)) & (
            length <= draft.lengths[:, None]
        )
        accepted = torch.where(passes, length, 0).amax(1)
        # At a row's own length this is the target, and after it the residual max(0, joint * target
        # - draft).
        return emit(draft, accepted, next_probs(draft, weighted, accepted), noise)


def prefix_probs(
    draft: Draft, target_probs: Float[Tensor, "batch window vocab"]
) -> Float[Tensor, "batch window"]:
    """Probability of accepting at least the first i tokens, i = 0..k, in float64: p_i = min(1,
    p_(i-1) target_i / draft_i), p_0 = 1.
    """
    index = draft.tokens[..., None]
    ratio = target_probs[:, : index.shape[1]].gather(2, index)[..., 0].to(torch.float64)
    if draft.probs is not None:
        # Only beyond a row's length can a probability be zero; the clamp prevents NaN there.
        ratio = ratio / draft.probs.gather(2, index)[..., 0].to(torch.float64).clamp(min=1e-300)
    probs = [torch.ones_like(ratio[:, 0])]
    for i in range(index.shape[1]):
        probs.append((probs[i] * ratio[:, i]).clamp(max=1))
    return torch.stack(probs, 1)


def pass_probs(
    draft: Draft,
    joint: Float[Tensor, "batch window"],
    weighted: Float[Tensor, "batch window vocab"],
) -> Float[Tensor, "batch k"]:
    """Probability that the prefix of i = 1..k tokens passes: p_i at the row's own length, r_i
    / (r_i + 1 - p_i) before it.

    Given the first i tokens, r_i, the sum of max(0, p_i target - draft) over the next token, is the
    probability of accepting exactly these, and 1 - p_i that of accepting fewer. `weighted` is p_i
    target.
    """
    k = draft.tokens.shape[1]
    length = torch.arange(1, k + 1, device=joint.device)
    if draft.probs is None:
        residual = weighted[:, 1:k].scatter(2, draft.tokens[:, 1:, None], 0)
    else:
        residual = (weighted[:, 1:k] - draft.probs[:, 1:]).clamp(min=0)
    exactly = residual.sum(2, dtype=torch.float64)
    before = exactly / (exactly + 1 - joint[:, 1:k])
    # Zero by zero: the next token is accepted with certainty, so this prefix has no influence; let
    # it pass.
    before = torch.cat((before.nan_to_num(nan=1.0), joint[:, -1:]), 1)
    return torch.where(length == draft.lengths[:, None], joint[:, 1:], before)
