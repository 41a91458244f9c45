"""The sampling options of a request, as a warp: logits to probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from bass.errors import OptionError, check_integer, is_finite
from bass.interfaces import Warp
from bass.ops import sampling
from bass.records import History


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
            ("repetition_penalty", lambda x: 1e-6 <= x <= 1e6, "of 1e-6 to 1e6 (1 = off)"),
        )
        for name, holds, range_ in rules:
            value = getattr(self, name)
            if not (is_finite(value) and holds(value)):
                raise OptionError(f"`{name}={value!r}` is out of range: give a number {range_}.")

    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]:
        if self.repetition_penalty != 1:
            wide = torch.promote_types(logits.dtype, torch.float32)
            repeated = sampling.seen(logits, history)
            logits = sampling.penalize(logits.to(wide), repeated, self.repetition_penalty)
        return sampling.warp(logits, self.temperature, self.top_k, self.top_p, self.min_p)
