"""Tests of purity: no writes to arguments, no dependence on clocks or global generators."""

import contextlib
import dataclasses
import datetime
import random
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor

CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
# the original functions, before `another_world` replaces them in their modules
READ_CLOCKS = {
    getattr(time, name): name
    for clock in (*CLOCKS, "clock_gettime", "localtime", "gmtime", "ctime")
    for name in (clock, f"{clock}_ns")
    if hasattr(time, name)
}
OF_DATES = ("now", "utcnow", "today")  # methods of `datetime` and `date`
# reads a clock whenever Python collects garbage
NOT_WATCHED = "hypothesis."
# From this index on, `__reduce_ex__` returns fresh iterators over the items of a container.
ITEMS = 3


def content(value: Any, above: tuple[int, ...] = ()) -> Any:
    """A value's whole content as nested tuples, which are equal for equal content."""
    if value is None or isinstance(value, bool | int | str | bytes | float | complex | type):
        return type(value).__name__, repr(value)
    if id(value) in above:
        return "the value above", len(above) - above.index(id(value))
    above = (*above, id(value))
    if isinstance(value, np.ndarray) and value.dtype != object:
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return type(value).__name__, value.tobytes()
    if isinstance(value, Tensor):
        return "tensor", str(value.dtype), content(value.detach().cpu().tolist(), above)
    if isinstance(value, np.ndarray | list | tuple):
        return type(value).__name__, tuple(content(part, above) for part in value)
    if isinstance(value, dict):
        return type(value).__name__, tuple(
            (content(key, above), content(part, above)) for key, part in value.items()
        )
    if isinstance(value, set | frozenset):
        return type(value).__name__, frozenset(content(part, above) for part in value)
    if dataclasses.is_dataclass(value):
        return type(value).__name__, tuple(
            (f.name, content(getattr(value, f.name), above)) for f in dataclasses.fields(value)
        )
    try:
        reduced = value.__reduce_ex__(4)
    except TypeError:  # a local function, a module, a lock: compare by identity
        return type(value).__name__, id(value)
    if isinstance(reduced, str):
        return reduced
    items = (
        list(part) if place >= ITEMS and isinstance(part, Iterator) else part
        for place, part in enumerate(reduced)
    )
    return tuple(content(part, above) for part in items)


def holds_tensor(value: Any) -> bool:
    """Whether a torch tensor is in the value."""

    def search(part: Any) -> bool:
        return isinstance(part, tuple) and (
            part[:1] == ("tensor",) or any(search(inner) for inner in part)
        )

    return isinstance(value, Tensor) or search(content(value))


@contextlib.contextmanager
def clocks_read() -> Iterator[list[str]]:
    """The names of the clocks of `time` and `datetime` that are read within it, also by another
    name, an attribute or a default; without those that `another_world` replaces.

    Calls by C code are not detected: `functools.partial`, `numpy.datetime64("now")`.
    """
    names: list[str] = []

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or str(frame.f_globals.get("__name__")).startswith(NOT_WATCHED):
            return
        of = getattr(function, "__self__", None)
        if isinstance(of, type) and issubclass(of, datetime.date):
            if function.__name__ in OF_DATES:
                names.append(f"{of.__name__}.{function.__name__}")
        elif function in READ_CLOCKS:
            names.append(f"time.{READ_CLOCKS[function]}")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield names
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def another_world(start: float, tick: float, seed: int) -> Iterator[None]:
    """Clocks that begin at `start` and advance by `tick` seconds per read, and global generators
    with this seed.
    """
    looks = 0

    def seconds() -> float:
        nonlocal looks
        looks += 1
        return start + tick * looks

    def nanoseconds() -> int:
        return int(seconds() * 1e9)

    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.ExitStack() as stack:
        for name in CLOCKS:
            stack.enter_context(mock.patch.object(time, name, seconds))
            stack.enter_context(mock.patch.object(time, f"{name}_ns", nanoseconds))
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
