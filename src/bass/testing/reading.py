"""Reads a row's position from each of the library's views, of tensors or with the same fields as
NumPy arrays.
"""

from collections.abc import Callable
from typing import Any

from bass.records import PaddedView, PagedView, RaggedView


def of_padded(view: Any, row: int, position: int) -> tuple[Any, Any]:
    """The key and the value."""
    return view.k[row, position], view.v[row, position]


def of_ragged(view: Any, row: int, position: int) -> tuple[Any, Any]:
    """The key and the value."""
    at = int(view.starts[row]) + position
    return view.k[at], view.v[at]


def of_paged(view: Any, row: int, position: int) -> tuple[Any, Any]:
    """The key and the value."""
    entry, at = divmod(position, view.k.shape[1])
    block = int(view.table[row, entry])
    assert block < len(view.k) - 1, "a row's position is in the spare block"
    return view.k[block, at], view.v[block, at]


READ: dict[type, Callable[[Any, int, int], tuple[Any, Any]]] = {
    PaddedView: of_padded,
    RaggedView: of_ragged,
    PagedView: of_paged,
}
