"""Arithmetic that verifiers share: accepted prefixes, the next token's distribution, verdicts.

window of a row    [ d1 .. dm | correction or bonus ]      m accepted of the drafted tokens
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bass.kernels import triton as kernels
from bass.kernels.values import RowNumbers, Scores
from bass.ops import dispatch
from bass.ops.batch_state import leading
from bass.ops.sampling import draw
from bass.records import Draft, Noise, Verdict


def rejection(draft: Draft, target_probs: Scores, noise: Noise) -> Verdict:
    """Speculative rejection sampling (Leviathan et al., 2023; Chen et al., 2023).

    Token i is accepted with probability min(1, target / draft) if all before it are; the next token
    is drawn from `next_probs`.
    """
    k = draft.tokens.shape[1]
    if k == 0:
        return emit(draft, torch.zeros_like(draft.lengths), target_probs[:, 0], noise)
    accept = noise.accept[:, :k]
    if dispatch.use_kernels(target_probs):
        return Verdict(
            *kernels.rejection_sampling.verdict(
                draft.tokens, draft.probs, draft.lengths, target_probs, accept, noise.residual
            )
        )
    accepted = leading(accept < accept_probs(draft, target_probs), draft.lengths)
    return emit(draft, accepted, next_probs(draft, target_probs, accepted), noise)


def accept_probs(draft: Draft, target_probs: Scores) -> Float[Tensor, "batch k"]:
    """Probability of accepting each drafted token: min(1, target/draft), eq. 1 of Leviathan et al.
    (2023).

    A deterministic draft puts all its mass on its token, so the token is accepted with its target
    probability.
    """
    index = draft.tokens[..., None]
    target = target_probs[:, : index.shape[1]].gather(2, index)[..., 0]
    if draft.probs is None:
        return target
    return (target / draft.probs.gather(2, index)[..., 0]).clamp(max=1)


def next_probs(
    draft: Draft, target_probs: Scores, accepted: RowNumbers
) -> Float[Tensor, "batch vocab"]:
    """The distribution of the token after the accepted ones, not normalised.

    After a rejection it is the residual max(0, target - draft). At a row's own length nothing was
    rejected: there it is the target, for any draft lengths of the other rows.
    """
    target = target_after(target_probs, accepted)
    rejected = draft_after(draft, target, accepted) * (accepted < draft.lengths)[:, None]
    residual = (target - rejected).clamp(min=0)
    # Rounding can make a residual 0 everywhere, where target and draft agree.
    return torch.where(residual.sum(1, keepdim=True) > 0, residual, target)


def draft_after(
    draft: Draft, like: Float[Tensor, "batch vocab"], accepted: RowNumbers
) -> Float[Tensor, "batch vocab"]:
    """The draft's distribution of the token after the accepted ones: of a deterministic draft a
    one-hot, of the shape and dtype of `like`. Undefined for a row whose whole draft is accepted.
    """
    rows = torch.arange(len(accepted), device=accepted.device)
    at = accepted.clamp(max=draft.tokens.shape[1] - 1)
    if draft.probs is not None:
        return draft.probs[rows, at]
    return torch.zeros_like(like).scatter(1, draft.tokens[rows, at][:, None], 1)


def target_after(target_probs: Scores, accepted: RowNumbers) -> Float[Tensor, "batch vocab"]:
    """The target's distribution of the token after the accepted ones."""
    return target_probs[torch.arange(len(accepted), device=accepted.device), accepted]


def emit(
    draft: Draft, accepted: RowNumbers, probs: Float[Tensor, "batch vocab"], noise: Noise
) -> Verdict:
    """Emit the accepted tokens, then one drawn from `probs` with the noise of its own slot.

    `probs` need not be normalised.
    """
    if dispatch.use_kernels(probs):
        tokens = kernels.rejection_sampling.emit(draft.tokens, accepted, probs, noise.residual)
        return Verdict(tokens, accepted)
    if not draft.tokens.shape[1]:
        return Verdict(draw(probs, noise.residual[:, 0])[:, None], accepted)
    last = draw(probs, noise.residual.gather(1, accepted[:, None])[:, 0])
    tokens = torch.cat((draft.tokens, draft.tokens.new_zeros(len(last), 1)), 1)
    return Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), accepted)
