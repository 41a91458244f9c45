"""Attention backends by their names for `attention=`. The first one for a cache's view is the
default.
"""

from bass.attention.flex import Flex
from bass.attention.torch import SDPA, Gather, PerRow, Reference
from bass.attention.triton import TritonPad, TritonPaged, TritonRagged, TritonSplit

BACKENDS = {
    "sdpa": SDPA,
    "per-row": PerRow,
    "gather": Gather,
    "pad": TritonPad,
    "split": TritonSplit,
    "ragged": TritonRagged,
    "paged": TritonPaged,
    "flex": Flex,
    "reference": Reference,
}
# With Triton on a CUDA device, the default is the first of these for the cache's view (timed on an
# H200, docs/log).
ON_CUDA = ("pad", "ragged", "paged")
__all__ = [
    "BACKENDS",
    "ON_CUDA",
    "SDPA",
    "Flex",
    "Gather",
    "PerRow",
    "Reference",
    "TritonPad",
    "TritonPaged",
    "TritonRagged",
    "TritonSplit",
]
