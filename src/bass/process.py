"""This process: its machine, its garbage collection, its modules."""

import functools
import gc
import importlib
import importlib.util
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@functools.cache
def cpu_name() -> str:
    """The product name of the processor if the system reports it, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Within it, no cycles are looked for, and none are freed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def find_object(module: str, name: str) -> Any:
    """The object `name`, which may have dots, of a module; `mine:Class` is found in the current
    folder, after all installed modules.

    If the module is not installed, the current folder is appended to `sys.path` for good, since the
    module may import others later. Raises the errors of the module.
    """
    top, here = module.partition(".")[0], Path.cwd()
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        sys.path.append(str(here))
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != top:
            raise
        raise ModuleNotFoundError(
            f"No module named '{top}'; put `{top}.py` into the current folder, `{here}`, or "
            "install it",
            name=top,
        ) from error
