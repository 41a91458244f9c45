"""Verifiers by their names for `verifier=`."""

from bass.verifiers.block import Block
from bass.verifiers.exact_match import Coupled, ExactMatch
from bass.verifiers.lossy import Synthetic, Typical
from bass.verifiers.rejection import Rejection

VERIFIERS = {
    "rejection": Rejection,
    "block": Block,
    "coupled": Coupled,
    "exact-match": ExactMatch,
    "typical": Typical,
    "synthetic": Synthetic,
}
__all__ = [
    "VERIFIERS",
    "Block",
    "Coupled",
    "ExactMatch",
    "Rejection",
    "Synthetic",
    "Typical",
]
