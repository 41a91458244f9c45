"""What verifiers have in common: how a prefix is counted, and how a verdict is put together."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.kernels import serves
from bass.records import Draft, Noise, Verdict
from bass.sampling import draw


def leading(kept: Bool[Tensor, "batch k"], lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """How many tokens of each row's own draft stand before the first that is not kept."""
    if serves(kept):
        from bass.kernels.rows import leading as kernel

        return kernel(kept, lengths)
    counts = torch.arange(kept.shape[1], device=kept.device) < lengths[:, None]
    return (kept & counts).cumprod(1).sum(1)


def target_after(
    target_probs: Float[Tensor, "batch window vocab"], accepted: Int[Tensor, " batch"]
) -> Float[Tensor, "batch vocab"]:
    """The target's distribution of the token after the accepted ones."""
    return target_probs[torch.arange(len(accepted), device=accepted.device), accepted]


def emit(
    draft: Draft, accepted: Int[Tensor, " batch"], probs: Float[Tensor, "batch vocab"], noise: Noise
) -> Verdict:
    """The accepted tokens, then one drawn from `probs`, not normalised, with the noise of its own
    slot.
    """
    if serves(probs):
        from bass.kernels.verdict import emit as kernel

        return Verdict(kernel(draft.tokens, accepted, probs, noise.residual), accepted)
    last = draw(probs, noise.residual.gather(1, accepted[:, None])[:, 0])
    tokens = torch.cat((draft.tokens, draft.tokens.new_zeros(len(last), 1)), 1)
    return Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), accepted)
