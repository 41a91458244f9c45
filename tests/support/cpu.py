"""The kernels for CPUs in tests, which use torch's operations otherwise."""

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

from bass.kernels.support import cpu_unsupported
from bass.ops import dispatch

UNSUPPORTED = cpu_unsupported()


def cpu() -> ModuleType:
    """The kernels: in a fresh clone, their first import compiles them."""
    return importlib.import_module("bass.kernels.cpu")


@contextlib.contextmanager
def cpu_kernels() -> Iterator[None]:
    """Everything with a kernel for CPUs uses it."""
    with (
        mock.patch.dict("os.environ", {dispatch.VARIABLE: "kernel"}),
        mock.patch.object(dispatch, "_cpu", []),
    ):
        dispatch.load_cpu_kernels()
        yield
