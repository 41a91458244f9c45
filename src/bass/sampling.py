"""Warps (logits to probabilities) and the draw of a token.

Pure functions of tensors and small frozen dataclasses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.errors import OptionError, check_integer, is_finite
from bass.interfaces import Warp
from bass.kernels import serves
from bass.records import History


def draw(
    probs: Float[Tensor, "*rows vocab"], uniform: Float[Tensor, "*rows"]
) -> Int[Tensor, "*rows"]:
    """The token at which the running sum of `probs` passes `uniform` times its total (inverse
    transform).

    The sum is kept in float64, and a token of probability zero is never drawn. `probs` need not be
    normalised.
    """
    if serves(probs):
        from bass.kernels.verdict import draw as kernel

        return kernel(probs, uniform)
    running = probs.to(torch.float64).cumsum(-1)
    threshold = uniform.to(torch.float64).unsqueeze(-1) * running[..., -1:]
    drawn = torch.searchsorted(running, threshold, right=True).squeeze(-1)
    # only NaN has no place in the sum; the engine refuses it by its log-probability
    return drawn.clamp(max=probs.shape[-1] - 1)


@final
@dataclass(frozen=True)
class Sampling(Warp):
    """The warp of a request, in the order and with the meaning of Hugging Face's generation
    options.

    repetition_penalty (over the row's prompt and output; Keskar et al., 2019), temperature (0 = the
    most probable token, as a one-hot distribution), top_k (0 = off), top_p (1 = off; Holtzman et
    al., 2020), min_p (0 = off; Nguyen et al., 2024). On a CUDA device kernels do it, but for logits
    in float64 and for the penalty. Logits of which one is NaN or infinity, or none is finite, give
    NaN at every temperature: they are no distribution.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_integer("top_k", self.top_k, 0)
        rules: tuple[tuple[str, Callable[[float], bool], str], ...] = (
            ("temperature", lambda x: x == 0 or x >= 1e-6, "of 0 (greedy), or 1e-6 or more"),
            ("top_p", lambda x: 0 < x <= 1, "above 0 and at most 1 (off)"),
            ("min_p", lambda x: 0 <= x < 1, "at least 0 (off) and below 1"),
            ("repetition_penalty", lambda x: x >= 1e-6, "of 1e-6 or more (1 = off)"),
        )
        for name, holds, range_ in rules:
            value = getattr(self, name)
            if not (is_finite(value) and holds(value)):
                raise OptionError(f"`{name}={value!r}` is out of range: give a number {range_}.")

    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        if self.repetition_penalty != 1:
            logits = penalize(logits.to(wide), seen(logits, history), self.repetition_penalty)
        if wide == torch.float32 and serves(logits):
            from bass.kernels.sample import warp

            return warp(logits, self.temperature, self.top_k, self.top_p, self.min_p)
        logits = logits.to(wide)
        if self.temperature == 0:
            chosen = F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
            return torch.where(logits.amax(-1, keepdim=True).isfinite(), chosen, torch.nan)
        if self.temperature != 1:
            logits = logits / self.temperature
        probs = logits.softmax(-1)
        if 0 < self.top_k < probs.shape[-1]:
            probs = keep_from(probs, probs.topk(self.top_k, -1).values[..., -1:])
        if self.top_p < 1:
            probs = keep_from(probs, top_p_floor(probs, self.top_p))
        if self.min_p > 0:
            probs = keep_from(probs, self.min_p * probs.amax(-1, keepdim=True))
        return probs


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
