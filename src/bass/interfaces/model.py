"""What a decoder promises, and what it is given to attend."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.records import DecoderShape, Projection


@runtime_checkable
class Attend(Protocol):
    """What a decoder needs of a cache and a backend, given to it as an argument."""

    @abstractmethod
    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        """Store a layer's keys and values, then attend."""
        ...

    @abstractmethod
    def store(self, layer: int, projection: Projection) -> None:
        """Store a layer's keys and values alone."""
        ...


class Decoder(ABC):
    """Knows weights and positions; nothing of caches, batches in flight, or sampling."""

    @property
    @abstractmethod
    def shape(self) -> DecoderShape: ...

    @abstractmethod
    def hidden(
        self,
        tokens: Int[Tensor, "batch window"],
        positions: Int[Tensor, "batch window"],
        attend: Attend,
    ) -> Float[Tensor, "batch window hidden"]: ...

    @abstractmethod
    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]: ...


class Quantization(ABC):
    """Holds the matrices of a decoder's blocks, and a draft's head, in fewer bytes.

    Each is given once it is loaded, and freed after it.
    """

    paper: ClassVar[str] = ""

    def check(self, device: torch.device) -> None:
        """Raise an `OptionError` where the device cannot compute with it."""

    @abstractmethod
    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> torch.nn.Module:
        """A module that takes x [*rows, in] to about x weightᵀ + bias [*rows, out], in x's dtype,
        each row by itself.

        What it holds are parameters: their bytes are what a pass is counted to read.
        """
        ...
