"""The first layers of a decoder, followed by its norm and head."""

import itertools
from dataclasses import dataclass, replace
from typing import final

from jaxtyping import Float
from torch import Tensor

from bass.errors import OptionError, counted
from bass.interfaces import Attend, Decoder
from bass.models.decoder import CausalDecoder
from bass.records import DecoderShape, Features, Window


@final
@dataclass(frozen=True)
class FirstLayers(Decoder):
    """`decoder` without the layers from `count` on. It shares the decoder's weights.

    Raises `OptionError` if `count` is none or all of the layers.
    """

    decoder: CausalDecoder
    count: int

    def __post_init__(self) -> None:
        layers = self.decoder.shape.layers
        if not 1 <= self.count < layers:
            raise OptionError(
                f"A draft of the first {counted(self.count, 'layer')} needs a larger target than "
                f"one of {layers}: set 1 to {layers - 1} layers."
            )

    @property
    def shape(self) -> DecoderShape:
        return replace(self.decoder.shape, rules=self.decoder.shape.rules[: self.count])

    def hidden(
        self, window: Window, attend: Attend, layers: tuple[int, ...] = ()
    ) -> tuple[Float[Tensor, "batch window hidden"], Features]:
        assert not layers, "features come from the whole decoder"
        x, _ = next(itertools.islice(self.decoder.streams(window, attend), self.count, None))
        return x.normed(self.decoder.norm).tensor(), ()

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return self.decoder.unembed(hidden)
