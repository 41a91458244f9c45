"""Windows without gaps: the dense layers of a pass see only the tokens that are there.

    padded   positions  [ 7  8  9 ]      packed   positions [ 7  8  9  4  5 ]
                        [ 4  5 -1 ]               offsets   [ 0  3  5  5 ]
                        [-1 -1 -1 ]

Rows that draft less than others, or have ended, cost nothing but in attention, which finds each
row's tokens by the offsets, as kernels for sequences of different lengths do. What is outside a
pass sees padded tensors.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.records import Window

MOST = 7 / 8  # of the places of a window that is packed


@final
@dataclass(frozen=True)
class Packing:
    """A packed window [1, tokens], and where its tokens are in the padded one.

    offsets: where the tokens of each row begin in the packed window, and their number. places: of
    each of its tokens, in the flattened padded window. tokens: of each place there, in the packed
    window; any where there is no token.
    """

    window: Window
    padded: Window
    offsets: Int[Tensor, " rows_and_one"]
    places: Int[Tensor, " tokens"]
    tokens: Int[Tensor, " places"]

    @classmethod
    def of(cls, padded: Window) -> "Packing | None":
        """The packing of a window; None if it has few gaps, or where the host would wait for the
        device.
        """
        positions = padded.positions
        if not positions.is_cpu or padded.rows is not None:
            return None
        present = positions.numpy() >= 0
        count, whole = int(present.sum()), present.size
        size = count if count <= 8 else -(-count // 4) * 4  # kernels take four rows at a time
        if not 0 < size <= MOST * whole:
            return None
        places = torch.zeros(size, dtype=torch.int64)
        places[:count] = torch.from_numpy(np.flatnonzero(present))
        own = positions.reshape(-1)[places]
        own[count:] = -1
        offsets = torch.zeros(len(present) + 1, dtype=torch.int64)
        offsets[1:] = torch.from_numpy(present.sum(1).cumsum())
        offsets[-1] = size  # the last ones are of the last row, at position -1
        tokens = torch.from_numpy((present.cumsum() - 1).clip(0))
        fed = padded.tokens.reshape(-1)[places]
        window = replace(padded, tokens=fed[None], positions=own[None])
        return cls(window, padded, offsets, places, tokens)

    def unpacked(self, x: Float[Tensor, "1 tokens *size"]) -> Float[Tensor, "batch window *size"]:
        """The values of the padded window, any where there is no token."""
        return x[0, self.tokens].unflatten(0, self.padded.positions.shape)
