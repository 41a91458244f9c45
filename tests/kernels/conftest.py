"""The engine with every kernel in its place, or with none, on any device; rows of chunks."""

from collections.abc import Callable, Iterator

import pytest
import torch

from bass.kernels.triton import rejection_sampling, sampling
from bass.ops import dispatch

Choose = Callable[[bool], None]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Says whether the functions that choose between kernels and torch take the kernels."""

    def choose(on: bool) -> None:
        monkeypatch.setattr(dispatch, "use_kernels", lambda _: on)

    return choose


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU's kernels in one thread, or in two for any amount of work."""
    from bass.kernels.cpu import runtime  # needs numba

    before = torch.get_num_threads()
    monkeypatch.setattr(runtime, "LEAST_WORK", 0)
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def hopper() -> torch.device:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")
    return torch.device("cuda", 0)


@pytest.fixture(params=[(64, 32, 8), (4096, 256, 6)], ids=["many chunks", "one chunk"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks, and of one that is not full; a number of bits that divides those of a
    key, and not.
    """
    chunk, search, bits = request.param
    for module, name, value in (
        (sampling, "TILE", search),
        (sampling, "CHUNK", chunk),
        (sampling, "PART", chunk // 8),
        (sampling, "BITS", bits),
        (rejection_sampling, "CHUNK", search),
    ):
        monkeypatch.setattr(module, name, value)
