"""The fields of families that rotate a part of each head."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bass.models.config import RotaryConfig, check_rotary
from bass.models.rope import pair_order
from bass.models.sources import head_rows


@dataclass(frozen=True)
class PartialRotaryConfig(RotaryConfig):
    """`partial_rotary_factor`: the share of a head's dimensions that are rotated.

    interleaved: the checkpoint rotates dimensions 2i and 2i + 1 together.
    """

    interleaved: ClassVar[bool] = False
    partial_rotary_factor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary(self.rotary_dim, self.head_dim)

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions of each head."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def qkv_rows(self) -> np.ndarray:
        """The rows of a stack [q, k, v] with the rotated dimensions in our order."""
        order = pair_order(self.head_dim, self.rotary_dim, self.interleaved)
        return head_rows(order, self.num_attention_heads, self.num_key_value_heads)
