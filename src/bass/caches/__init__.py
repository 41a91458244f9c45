"""KV-cache layouts by their names for `cache=`."""

from bass.caches.padded import PaddedCache
from bass.caches.paged import PagedCache
from bass.caches.split import SplitCache

CACHES = {"padded": PaddedCache, "split": SplitCache, "paged": PagedCache}
__all__ = [
    "CACHES",
    "PaddedCache",
    "PagedCache",
    "SplitCache",
]
