"""KV-cache layouts, by the name under which `cache=` finds them."""

from bass.caches.padded import PaddedCache
from bass.caches.paged import PagedCache
from bass.caches.split import SplitCache

CACHES = {"padded": PaddedCache, "split": SplitCache, "paged": PagedCache}
