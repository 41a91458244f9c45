"""Logits to probabilities (warps), the draw of a token, and log-probabilities.

warp            p = e / Σ e over the kept tokens, else 0;  e = exp((x - max x) / T)
draw            the token at which the running sum of p passes u Σ p (inverse transform)
token_logprobs  x[token] - log Σ exp(x)
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.records import History


def warp(
    logits: Float[Tensor, "batch window vocab"],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> Float[Tensor, "batch window vocab"]:
    """The distribution at a temperature (0: a one-hot), restricted by top-k, top-p, min-p in turn.

    `top_k` 0, `top_p` 1 and `min_p` 0 restrict nothing. In float32, or float64 for logits in
    float64. Logits of which one is NaN or infinity, or none is finite, give NaN.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if wide == torch.float32 and dispatch.use_kernels(logits):
        return kernels.sampling.warp(logits, temperature, top_k, top_p, min_p)
    logits = logits.to(wide)
    if temperature == 0:
        chosen = F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        return torch.where(logits.amax(-1, keepdim=True).isfinite(), chosen, torch.nan)
    if temperature != 1:
        # not x / T, which may overflow
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    probs = logits.softmax(-1)
    if 0 < top_k < probs.shape[-1]:
        probs = keep_from(probs, probs.topk(top_k, -1).values[..., -1:])
    if top_p < 1:
        probs = keep_from(probs, top_p_floor(probs, top_p))
    if min_p > 0:
        probs = keep_from(probs, min_p * probs.amax(-1, keepdim=True))
    return probs


def draw(
    probs: Float[Tensor, "*rows vocab"], uniform: Float[Tensor, "*rows"]
) -> Int[Tensor, "*rows"]:
    """The token at which the running sum of `probs` passes `uniform` times its total (inverse
    transform).

    The sum is kept in float64, and a token of probability zero is never drawn. `probs` need not be
    normalised.
    """
    if dispatch.use_kernels(probs):
        return kernels.rejection_sampling.draw(probs, uniform)
    running = probs.to(torch.float64).cumsum(-1)
    threshold = uniform.to(torch.float64).unsqueeze(-1) * running[..., -1:]
    drawn = torch.searchsorted(running, threshold, right=True).squeeze(-1)
    # only NaN has no place in the sum; the engine refuses it by its log-probability
    return drawn.clamp(max=probs.shape[-1] - 1)


def token_logprobs(
    logits: Float[Tensor, "batch window vocab"], tokens: Int[Tensor, "batch window"]
) -> Float[Tensor, "batch window"]:
    """log softmax(logits) at `tokens`: the model's own log-probability, before any warp.

    NaN for a token that is none.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if wide == torch.float32 and dispatch.use_kernels(logits):
        return kernels.sampling.token_logprobs(logits, tokens)
    logprobs, known = logits.to(wide).log_softmax(-1), (tokens >= 0) & (tokens < logits.shape[2])
    at = torch.where(known, tokens, 0)[..., None]
    return torch.where(known, logprobs.gather(2, at)[..., 0], torch.nan)


def keep_from(
    probs: Float[Tensor, "*rows vocab"], floor: Float[Tensor, "*rows 1"]
) -> Float[Tensor, "*rows vocab"]:
    """The distribution restricted to tokens of probability `floor` or more; equal probabilities
    stay or go together.
    """
    kept = torch.where(probs >= floor, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_floor(probs: Float[Tensor, "*rows vocab"], top_p: float) -> Float[Tensor, "*rows 1"]:
    """The smallest probability among the most probable tokens whose sum first reaches `top_p`."""
    ordered, sums = most_probable(probs, top_p)
    before = sums[..., :-1]  # what stands before each token but the first, which is always kept
    return ordered.gather(-1, (before < top_p).sum(-1, keepdim=True))


def most_probable(
    probs: Float[Tensor, "*rows vocab"], mass: float
) -> tuple[Float[Tensor, "*rows most"], Float[Tensor, "*rows most"]]:
    """The largest probabilities in falling order, enough of them to hold `mass` in every row, and
    their running sums.

    On a CPU a few dozen nearly always do, and finding them takes a tenth of a sort; to see whether
    they do takes a host read, which costs nothing there and is not made elsewhere.
    """
    if probs.device.type == "cpu":
        for count in (32, 512):
            if count < probs.shape[-1]:
                head = probs.topk(count, -1).values
                sums = head.cumsum(-1)
                if float(sums[..., -1].min()) >= mass:
                    return head, sums
    ordered = probs.sort(-1, descending=True).values
    return ordered, ordered.cumsum(-1)


def seen(
    logits: Float[Tensor, "batch window vocab"], history: History
) -> Bool[Tensor, "batch window vocab"]:
    """Which tokens precede each logit in its own row."""
    batch, window, vocab = logits.shape
    device, columns = logits.device, history.drafted.shape[1]
    committed = torch.arange(history.tokens.shape[1], device=device) < history.lens[:, None]
    counts = torch.zeros(batch, vocab, device=device, dtype=torch.int64).scatter_add(
        1, history.tokens, committed.to(torch.int64)
    )
    drafted = F.one_hot(history.drafted, vocab).cumsum(1)
    earlier = torch.cat(
        (torch.zeros(batch, 1, vocab, device=device, dtype=torch.int64), drafted), 1
    )
    return (counts[:, None] + earlier[:, columns + 1 - window :]) > 0


def penalize(
    logits: Float[Tensor, "batch window vocab"],
    repeated: Bool[Tensor, "batch window vocab"],
    penalty: float,
) -> Float[Tensor, "batch window vocab"]:
    """Divide the positive and multiply the negative logits of repeated tokens by `penalty`."""
    return torch.where(
        repeated, torch.where(logits > 0, logits / penalty, logits * penalty), logits
    )
