"""The kernels for CPUs in tests, which use torch's operations otherwise."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from bass.kernels.support import cpu_unsupported
from bass.ops import dispatch

UNSUPPORTED = cpu_unsupported()


@contextlib.contextmanager
def cpu_kernels() -> Iterator[None]:
    """Everything with a kernel for CPUs uses it."""
    with (
        mock.patch.dict("os.environ", {dispatch.VARIABLE: "kernel"}),
        mock.patch.object(dispatch, "_cpu", []),
    ):
        dispatch.load_cpu_kernels()
        yield
