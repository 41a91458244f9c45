"""Every registered layout, the paged one in small blocks too, and how to read a row's position out
of each one's view.
"""

from collections.abc import Callable
from typing import Any

import pytest

from bass.caches import CACHES, paged
from bass.interfaces import KVCache
from bass.testing.properties_of_models import READ

__all__ = ["LAYOUTS", "READ", "Make", "in_blocks_of"]

Make = Callable[..., KVCache[Any]]


def in_blocks_of(size: int) -> Make:
    """Rows of a few positions have several blocks then."""

    def allocate(*given: Any) -> KVCache[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paged, "BLOCK", size)
            return paged.PagedCache.allocate(*given)

    return allocate


LAYOUTS: dict[str, Make] = {
    **{name: cls.allocate for name, cls in CACHES.items()},
    **{f"paged in blocks of {size}": in_blocks_of(size) for size in (1, 2, 3)},
}
