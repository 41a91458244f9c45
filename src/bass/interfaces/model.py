"""What a decoder promises, and what it is given to attend."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from bass.records import DecoderShape, Features, Projection, Window


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
        self, window: Window, attend: Attend, layers: tuple[int, ...] = ()
    ) -> tuple[Float[Tensor, "batch window hidden"], Features]:
        """The final states, after the last norm; and the residual stream that enters each of
        `layers`, where the number of layers stands for the final states.
        """
        ...

    def fill(self, window: Window, attend: Attend, layers: tuple[int, ...] = ()) -> Features:
        """Store the keys and values of all layers, and return the states of `layers`.

        A decoder that need not compute all of its last layer for it overrides this.
        """
        return self.hidden(window, attend, layers)[1]

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
