"""Parts of prompts in the pass of a step, which reads the weights once for both:

    window    row 0 [ 7  8  9 ]       dense layers  [ 7 8 9 4 5 -1 | 0 1 .. 31 32 .. 63 ]
              row 1 [ 4  5 -1 ]       attention       of the window   of the prompts
    prompts   row 2 [ 0 .. 31 ]
              row 2 [ 32 .. 63 ]

A row decodes or is fed, so neither attention reads what the other stores.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Attend
from bass.records import Projection, Window


@final
@dataclass(frozen=True)
class Joined(Attend):
    """The window [1, tokens] of a step's window and its `prompts`, and its attention, which is that
    of the two, one after the other.
    """

    windows: tuple[Window, Window]
    attends: tuple[Attend, Attend]

    @property
    def window(self) -> Window:
        """The tokens of both."""
        tokens, positions = (
            torch.cat([getattr(one, name).flatten() for one in self.windows])[None]
            for name in ("tokens", "positions")
        )
        return Window(tokens, positions, max(one.span for one in self.windows))

    def __call__(self, layer: int, projection: Projection) -> Float[Tensor, "1 tokens heads dim"]:
        found = [attend(layer, own).flatten(0, 1) for attend, own in self._each(projection)]
        return torch.cat(found)[None]

    def store(self, layer: int, projection: Projection) -> None:
        for attend, own in self._each(projection):
            attend.store(layer, own)

    def split(self, x: Float[Tensor, "1 tokens *size"]) -> tuple[Tensor, Tensor]:
        """The values of the two windows [batch, window, *size]."""
        shapes = [one.positions.shape for one in self.windows]
        each = x[0].split([shape.numel() for shape in shapes])
        first, second = (part.unflatten(0, shape) for part, shape in zip(each, shapes, strict=True))
        return first, second

    def _each(self, projection: Projection) -> Iterator[tuple[Attend, Projection]]:
        """The attention of each window, with its part of a projection of all tokens."""
        counts = [one.positions.numel() for one in self.windows]
        each = projection.partial_sums[:, 0].split(counts, 1)
        for window, attend, sums in zip(self.windows, self.attends, each, strict=True):
            own, rotation = sums.unflatten(1, window.positions.shape), projection.rotation
            if rotation is not None:
                rotation = replace(rotation, positions=window.positions)
            yield attend, replace(projection, partial_sums=own.contiguous(), rotation=rotation)
