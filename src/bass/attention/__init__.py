"""Attention backends, by the name under which `attention=` finds them; of those that fit a cache
the first is its default.
"""

from bass.attention.flex import Flex
from bass.attention.gather import Gather
from bass.attention.pad import TritonPad
from bass.attention.paged import TritonPaged
from bass.attention.per_row import PerRow
from bass.attention.ragged import TritonRagged
from bass.attention.reference import Reference, ReferencePaged, ReferenceRagged
from bass.attention.sdpa import SDPA
from bass.attention.split import TritonSplit

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
    "reference-ragged": ReferenceRagged,
    "reference-paged": ReferencePaged,
}
# On a CUDA device the first of these that fits the cache is its default, where Triton is installed
# (timed on an H200, docs/log.md).
ON_CUDA = ("pad", "ragged", "paged")
