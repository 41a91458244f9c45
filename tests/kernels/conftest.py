"""The engine with every kernel in its place, or with none, on any device."""

from collections.abc import Callable

import pytest
import torch

from bass.ops import dispatch

Choose = Callable[[bool], None]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Says whether the functions that choose between kernels and torch take the kernels."""

    def choose(on: bool) -> None:
        monkeypatch.setattr(dispatch, "use_kernels", lambda _: on)

    return choose


@pytest.fixture(scope="module")
def hopper() -> torch.device:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")
    return torch.device("cuda", 0)
