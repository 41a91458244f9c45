"""Tier 3: products that are added to the residual stream, and norms without kernels, emulated and
on Hopper.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from support.gluon import emulated

ahead: Any = pytest.importorskip("bass.kernels.hopper.gemm")  # needs the Gluon of Triton 3.6
ahead_added: Any = pytest.importorskip("bass.kernels.hopper.gemm_residual")

EPS = 0.5  # large enough to be missed


def drawn(rows: int, size: int, kind: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    return torch.randn(
        rows, size, generator=torch.Generator(device).manual_seed(seed), device=device
    ).to(kind)


@contextmanager
def both_emulated(late: Sequence[torch.Tensor]) -> Iterator[None]:
    with emulated(ahead, late), emulated(ahead_added, late):
        yield


@pytest.mark.parametrize(
    ("n", "tile"),
    [(4096, 32), (2048, 16), (3072, 32), (8192, 64), (5120, None), (1024, None), (14336, None)],
)
def test_tiles_are_at_most_one_for_each_multiprocessor_and_not_many_fewer(
    n: int, tile: int | None
) -> None:
    assert ahead_added.tile_for(n, 132) == tile


@pytest.mark.parametrize(("k", "stages"), [(64, 2), (2048, 4), (5632, 6)])
def test_no_more_is_in_flight_than_there_is(
    k: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of blocks of 512 columns: what is asked for leaves the next kernel less memory, used or
    not.
    """
    found = {}

    class Launch:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *_, **options: found.update(options)

    for module in (ahead, ahead_added):
        monkeypatch.setattr(module, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(ahead_added, "_added", Launch())
    x, w, stream = (
        torch.zeros(shape, dtype=torch.bfloat16) for shape in ((8, k), (2048, k), (8, 2048))
    )
    ahead_added.added(x, w, None, stream, stream[0])
    assert found["STAGES"] == stages


def test_only_matrices_of_bfloat16_that_divide_well_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead_added, "multiprocessors", lambda _: 4)
    w = torch.zeros(64, 64, dtype=torch.bfloat16)
    assert ahead_added.supports(8, w)
    assert not ahead_added.supports(0, w)
    assert ahead_added.supports(16, w)
    assert not ahead_added.supports(17, w)
    assert not ahead_added.supports(8, w.half())
    assert not ahead_added.supports(8, w[:, :60].contiguous())
    assert not ahead_added.supports(8, w[:32])


def test_what_a_backend_of_the_users_own_gives_is_made_the_matrixs_type_and_aligned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (ahead, ahead_added):
        monkeypatch.setattr(module, "multiprocessors", lambda _: 4)
    w, weight = (
        drawn(64, 64, torch.bfloat16, torch.device("cpu"), 0),
        torch.ones(64, dtype=torch.bfloat16),
    )
    x = drawn(3, 65, torch.float32, torch.device("cpu"), 1)[:, 1:]
    with both_emulated([]):
        found = ahead_added.added(
            x, w, None, torch.zeros(3, 64, dtype=torch.bfloat16), weight
        ).stream
    assert_close(found, x.double() @ w.double().T)


@pytest.mark.parametrize(
    ("rows", "hidden", "inner", "multiprocessors"),
    [(1, 272, 336, 20), (5, 144, 528, 5), (16, 272, 336, 6), (9, 130, 64, 9)],
)
def test_a_norm_between_two_products_takes_no_kernel(
    rows: int, hidden: int, inner: int, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """out, added to the stream; norm, gate and up; down, added to the stream; norm, the next one:
    beside norms and products apart.
    """
    for module in (ahead, ahead_added):
        monkeypatch.setattr(module, "multiprocessors", lambda _: multiprocessors)
    check_norms(rows, hidden, inner, both_emulated, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "hidden", "inner"),
    [(1, 2048, 5632), (8, 4096, 11008), (15, 2000, 520), (16, 4096, 14336)],
)
def test_a_norm_between_two_products_takes_no_kernel_on_hopper(
    rows: int, hidden: int, inner: int, hopper: torch.device
) -> None:
    check_norms(rows, hidden, inner, lambda late: nullcontext(), hopper)


def check_norms(rows: int, hidden: int, inner: int, where: Any, device: torch.device) -> None:
    number = torch.bfloat16

    def weight(n: int, k: int, seed: int) -> torch.Tensor:
        return drawn(n, k, number, device, seed) / k**0.5

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (
            x.double() * (x.double().square().mean(1, keepdim=True) + EPS).rsqrt() * weight.double()
        )

    out, both, down, after = (
        weight(hidden, hidden, 0),
        weight(2 * inner, hidden, 1),
        weight(hidden, inner, 2),
        weight(96, hidden, 3),
    )
    stream, attended = (
        3 * drawn(rows, hidden, number, device, 10),
        drawn(rows, hidden, number, device, 11),
    )
    first, second = (1 + drawn(1, hidden, number, device, seed)[0] / 4 for seed in (12, 13))
    bias = drawn(1, hidden, number, device, 14)[0]
    with where([attended, stream]):
        left = ahead_added.added(attended, out, bias, stream, first)
    with where([left.weighted, left.sums]):
        middle = ahead.gated(
            left.weighted, both, "silu", ahead.Squares(left.sums, EPS), None, number
        )
    with where([middle, left.stream]):
        last = ahead_added.added(middle, down, None, left.stream, second)
    with where([last.weighted, last.sums]):
        end = ahead.linear(
            last.weighted, after, None, ahead.Squares(last.sums, EPS), None, number
        ).sum(0)

    assert_close(left.stream, stream.double() + attended.double() @ out.double().T + bias.double())
    assert_close(left.sums.sum(0), left.stream.double().square().sum(1))
    gate, up = (normed(left.stream, first) @ both.double().T).chunk(2, 1)
    assert_close(middle, gate * gate.sigmoid() * up)
    assert_close(last.stream, left.stream.double() + middle.double() @ down.double().T)
    assert_close(end, normed(last.stream, second) @ after.double().T)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.isfinite().all()
    assert (found.double() - expected).norm() <= 5e-3 * expected.norm()
