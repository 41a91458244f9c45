"""The sampling options of a request, and the warps that apply them: logits to probabilities."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bass.errors import OptionError, StrategyError, check_integer, is_finite
from bass.interfaces import Warp
from bass.ops import sampling
from bass.records import History

_PENALTIES = "of -2 to 2 (0 = off)"
# ranges of the options that are not integers, with their words
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda x: x == 0 or 1e-6 <= x <= 1e6, "of 0 (greedy), or 1e-6 to 1e6"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1 (off)"),
    "min_p": (lambda x: 0 <= x < 1, "at least 0 (off) and below 1"),
    "repetition_penalty": (lambda x: 1e-6 <= x <= 1e6, "of 1e-6 to 1e6 (1 = off)"),
    "presence_penalty": (lambda x: abs(x) <= 2, _PENALTIES),
    "frequency_penalty": (lambda x: abs(x) <= 2, _PENALTIES),
}


def check_sampling(name: str, value: Any) -> None:
    """Raise `OptionError` for a value of a sampling option that is out of its range."""
    if name not in _RANGES:
        check_integer(name, value, 0)
        return
    holds, range_ = _RANGES[name]
    if not (is_finite(value) and holds(value)):
        raise OptionError(f"`{name}={value!r}` is out of range: give a number {range_}.")


@final
@dataclass(frozen=True)
class Sampling(Warp):
    """The sampling options of a request, applied in this order: penalties, temperature, top_k,
    top_p, min_p.

    Meanings are those of Hugging Face's generation options, or of vLLM for those that only vLLM
    has. repetition_penalty: over the row's prompt and output (Keskar et al., 2019).
    frequency_penalty, presence_penalty: subtracted once for each occurrence among the generated
    tokens, and once for any. temperature: 0 = the most probable token, as a one-hot distribution.
    top_k: 0 = off. top_p: 1 = off (Holtzman et al., 2020). min_p: 0 = off (Nguyen et al., 2024).
    min_new_tokens: end tokens have probability 0 before this many tokens.

    As a warp it treats all rows alike. Logits that contain NaN or +infinity, or no finite value,
    give NaN at every temperature. Raises `OptionError` for a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_sampling(name, value)

    def packed(self, rows: int, device: torch.device) -> Float64[Tensor, "batch options"]:
        """The options as rows of `Sequences.sampling`. Nothing is copied from the host."""
        columns = [
            torch.full((rows,), float(value), dtype=torch.float64, device=device)
            for value in astuple(self)
        ]
        return torch.stack(columns, 1)

    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]:
        if history.prompt_lens is None or history.end_tokens is None:
            if self.presence_penalty or self.frequency_penalty or self.min_new_tokens:
                raise _no_options(type(self).__name__)
            none = history.tokens[:, :0]
            history = replace(history, prompt_lens=history.lens, end_tokens=none)
        packed = self.packed(len(logits), logits.device)
        return sampling.warp(logits, replace(history, sampling=packed))


@final
@dataclass(frozen=True)
class RowSampling(Warp):
    """The warp of a batch, in which each row has its own options: `Sequences.sampling`."""

    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]:
        if history.sampling is None or history.prompt_lens is None or history.end_tokens is None:
            raise _no_options(type(self).__name__)
        return sampling.warp(logits, history)


def _no_options(warp: str) -> StrategyError:
    return StrategyError(
        f"`{warp}` reads the options of the rows, which the `History` lacks: make it by "
        "`sequences.history(drafted)`."
    )
