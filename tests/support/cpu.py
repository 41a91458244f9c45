"""The kernels for CPUs in tests, which use torch's operations otherwise."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch

from bass.kernels.support import cpu_unsupported
from bass.ops import cpu_products

UNSUPPORTED = cpu_unsupported()


@contextlib.contextmanager
def cpu_kernels(*models: torch.nn.Module) -> Iterator[None]:
    """Everything with a kernel for CPUs uses it, products by these models' matrices included."""
    matrices = [p for model in models for p in model.parameters() if p.ndim == 2]
    with (
        mock.patch.dict("os.environ", {cpu_products.VARIABLE: "kernel"}),
        mock.patch.dict(cpu_products._chosen),
        mock.patch.dict(cpu_products._found, clear=True),
    ):
        cpu_products.measure(matrices or [torch.zeros(8, 8)])
        yield
