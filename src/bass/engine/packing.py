"""Windows without gaps: the dense layers of a pass see only the tokens that are there.

    padded   positions  [ 7  8  9 ]      packed   positions [ 7  8  9  4  5 ]
                        [ 4  5 -1 ]               offsets   [ 0  3  5  5 ]
                        [-1 -1 -1 ]

Rows that draft less than others, or have ended, cost nothing but in attention, which finds each
row's tokens by the offsets, as kernels for sequences of different lengths do. What is outside a
pass sees padded tensors.

On a CPU the host counts the tokens of each window. On a GPU a packed window has one of few sizes
(`bass.engine.shapes`), each a CUDA graph, of which the host knows that its tokens fit.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.records import PackedRows, Window

MOST = 7 / 8  # of the places of a window that is packed


@final
@dataclass(frozen=True)
class Packing:
    """A packed window [1, tokens], and where its tokens are in the padded one.

    tokens: of each place of the flattened padded window, in the packed one; any where there is no
    token.
    """

    window: Window
    padded: Window
    rows: PackedRows
    tokens: Int[Tensor, " places"]

    @classmethod
    def of(cls, padded: Window) -> "Packing | None":
        """The packing of a window; None if it has few gaps, or where the host knows no bound."""
        if padded.most is not None:
            return cls._bounded(padded, padded.most)
        if padded.rows is not None or not padded.positions.is_cpu:
            return None
        return cls._counted(padded)

    @classmethod
    def _counted(cls, padded: Window) -> "Packing | None":
        present = padded.positions.numpy() >= 0
        count, whole = int(present.sum()), present.size
        size = count if count <= 8 else -(-count // 4) * 4  # kernels take four rows at a time
        if not 0 < size <= MOST * whole:
            return None
        places = torch.zeros(size, dtype=torch.int64)
        places[:count] = torch.from_numpy(np.flatnonzero(present))
        offsets = torch.zeros(len(present) + 1, dtype=torch.int64)
        offsets[1:] = torch.from_numpy(present.sum(1).cumsum())
        tokens = torch.from_numpy((present.cumsum() - 1).clip(0))
        return cls._placed(padded, places, offsets, tokens)

    @classmethod
    def _bounded(cls, padded: Window, size: int) -> "Packing":
        """The packing into `size` places, which the tokens fit in; no host read."""
        present = padded.positions.flatten() >= 0
        index = present.cumsum(0)
        ends = index[padded.positions.shape[1] - 1 :: padded.positions.shape[1]]
        offsets = torch.cat((index.new_zeros(1), ends))
        tokens = (index - 1).clamp(min=0)
        # the one after the last takes what is not there
        places = index.new_zeros(size + 1)
        places.scatter_(
            0, torch.where(present, tokens, size), torch.arange(len(present), device=present.device)
        )
        return cls._placed(padded, places[:size], offsets, tokens)

    @classmethod
    def _placed(cls, padded: Window, places: Tensor, offsets: Tensor, tokens: Tensor) -> "Packing":
        """places: of each token, 0 for those after the last; offsets: up to the last token."""
        size = len(places)
        own = padded.positions.flatten()[places]
        own = torch.where(torch.arange(size, device=own.device) < offsets[-1], own, -1)[None]
        offsets[-1:].fill_(size)
        window = replace(
            padded, tokens=padded.tokens.flatten()[places][None], positions=own, most=None
        )
        rows = PackedRows(own, offsets, places, padded.positions.shape[1])
        return cls(window, padded, rows, tokens)

    def unpacked(self, x: Float[Tensor, "1 tokens *size"]) -> Float[Tensor, "batch window *size"]:
        """The values of the padded window, any where there is no token."""
        return x[0, self.tokens].unflatten(0, self.padded.positions.shape)
