"""Attention backends, by the name under which `attention=` finds them; of those that fit a cache the first is its default."""

from bass.attention.per_row import PerRow
from bass.attention.sdpa import SDPA

BACKENDS = {"sdpa": SDPA, "per-row": PerRow}
