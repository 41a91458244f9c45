"""Verifiers by their names for `verifier=`."""

from bass.verifiers.block import Block
from bass.verifiers.exact_match import Coupled, ExactMatch
from bass.verifiers.rejection import Rejection
from bass.verifiers.synthetic import Synthetic
from bass.verifiers.typical import Typical

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
