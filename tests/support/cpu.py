"""The kernels for CPUs in tests, which use torch's operations otherwise."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from bass.kernels.support import cpu_unsupported
from bass.ops import dispatch

UNSUPPORTED = cpu_unsupported()


class _Kernels:
    """`bass.kernels.cpu`, imported when it is first used: in a fresh clone the import compiles."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("bass.kernels.cpu"), name)


cpu = _Kernels()


@contextlib.contextmanager
def cpu_kernels() -> Iterator[None]:
    """Everything with a kernel for CPUs uses it."""
    with (
        mock.patch.dict("os.environ", {dispatch.VARIABLE: "kernel"}),
        mock.patch.object(dispatch, "_cpu", []),
    ):
        dispatch.load_cpu_kernels()
        yield
