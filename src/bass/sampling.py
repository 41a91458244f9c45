"""The sampling options of a request, and the warps that apply them: logits to probabilities."""

from dataclasses import astuple, dataclass, fields, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bass.interfaces import Warp
from bass.ops import sampling
from bass.option import check_value
from bass.records import History
from bass.sampling_params import SamplingParams

_OPTIONS = {f.name: f for f in fields(SamplingParams)}


@final
@dataclass(frozen=True)
class Sampling(Warp):
    """One set of sampling options for all rows, applied in this order: penalties, temperature,
    top_k, top_p, min_p; by default none.

    Meanings are those of Hugging Face's generation options, or of vLLM for those that only vLLM
    has. repetition_penalty: over the row's prompt and output (Keskar et al., 2019).
    frequency_penalty, presence_penalty: subtracted once for each occurrence among the generated
    tokens, and once for any. temperature: 0 = the most probable token, as a one-hot distribution.
    top_k: 0 or -1 = off. top_p: 1 = off (Holtzman et al., 2020). min_p: 0 = off (Nguyen et al.,
    2024). min_new_tokens: end tokens have probability 0 before this many tokens.

    Logits that contain NaN or +infinity, or no finite value,
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
            check_value(_OPTIONS[name], value)

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
        packed = self.packed(len(logits), logits.device)
        return sampling.warp(logits, replace(history, sampling=packed))


@final
@dataclass(frozen=True)
class RowSampling(Warp):
    """The warp of a batch, in which each row has its own options: `Sequences.sampling`."""

    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]:
        return sampling.warp(logits, history)
