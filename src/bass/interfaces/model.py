"""The contracts of decoders, of the attention that they call, and of quantizations."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from bass.records import DecoderShape, Features, Projection, Window


@runtime_checkable
class Attend(Protocol):
    """Cache and backend of one forward pass, as a decoder calls them."""

    @abstractmethod
    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        """Store a layer's keys and values, then attend."""

    @abstractmethod
    def store(self, layer: int, projection: Projection) -> None:
        """Store a layer's keys and values, without attention."""


class Decoder(ABC):
    """Weights and positions, without caches, batches in flight, or sampling.

    replayable: a pass keeps nothing and reads no value on the host, so that a CPU may replay its
    kernels, as a CUDA graph does.
    """

    replayable: bool = False

    @property
    @abstractmethod
    def shape(self) -> DecoderShape: ...

    @abstractmethod
    def hidden(
        self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()
    ) -> tuple[Float[Tensor, "batch window hidden"], Features]:
        """The final states, after the last norm, and the states of `feature_ids`, as of
        `DraftMethod.target_features`.
        """

    def fill(self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()) -> Features:
        """Store the keys and values of all layers, and return the states of `feature_ids`.

        A decoder that can skip a part of its last layer overrides this.
        """
        return self.hidden(window, attend, feature_ids)[1]

    @abstractmethod
    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        """Logits of final states."""


class Quantization(ABC):
    """Stores the matrices of a decoder's blocks, and a draft's head, in fewer bits.

    `load` calls it with each matrix, which is freed afterwards.
    """

    paper: ClassVar[str] = ""

    def check(self, device: torch.device) -> None:
        """Raise an `OptionError` if the device cannot compute with it."""

    @abstractmethod
    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> torch.nn.Module:
        """A module that maps x [*rows, in] to about x weightᵀ + bias [*rows, out], in x's dtype,
        each row independently.

        Its tensors must be parameters: the cost model counts their bytes.
        """
