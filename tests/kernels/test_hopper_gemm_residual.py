"""Tier 3: products that are added to the residual stream, and norms without kernels, emulated and
on Hopper.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bass.kernels.values import Norm
from support.gluon import emulated

ahead: Any = pytest.importorskip("bass.kernels.hopper.gemm")  # needs the Gluon of Triton 3.6
ahead_added: Any = pytest.importorskip("bass.kernels.hopper.gemm_residual")
Term = ahead_added.Term

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
    ("n", "ks", "rows", "tile"),
    [
        (4096, [4096], 8, 32), (4096, [14336], 16, 32), (2048, [8192], 16, 16),
        (1024, [3072], 8, 16), (768, [768], 10, 16), (1024, [1024, 4096], 10, 16),
        (5120, [5120], 8, None),
        (6144, [6144], 1, 64), (6144, [6144, 24576], 1, None), (14336, [4096], 1, None),
    ],
)  # fmt: skip
def test_a_product_adds_itself_where_that_takes_less_time(
    n: int, ks: list[int], rows: int, tile: int | None
) -> None:
    assert ahead_added.tile_for(n, ks, rows, 132) == tile


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
    ahead_added.added([Term(x, w)], stream, Norm(stream[0], EPS))
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
    assert not ahead_added.supports(8, torch.zeros(320, 64, dtype=torch.bfloat16))
    assert ahead_added.supports(8, w, w)
    assert not ahead_added.supports(8, w, w[:48])
    assert not ahead_added.supports(8, w, w, w)


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
        stream = torch.zeros(3, 64, dtype=torch.bfloat16)
        found = ahead_added.added([Term(x, w)], stream, Norm(weight, EPS)).stream
    assert_close(found, x.double() @ w.double().T)


KINDS = pytest.mark.parametrize("kind", ["rms", "offset_rms", "layer"])


@KINDS
@pytest.mark.parametrize("parallel", [False, True], ids=["one", "two"])
@pytest.mark.parametrize(
    ("rows", "hidden", "inner", "multiprocessors"),
    [(1, 272, 336, 20), (5, 144, 528, 5), (16, 272, 336, 6), (9, 130, 64, 9)],
)
def test_a_norm_between_two_products_takes_no_kernel(
    rows: int,
    hidden: int,
    inner: int,
    multiprocessors: int,
    parallel: bool,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """out, added to the stream; norm, gate and up; down, added to the stream; norm, the next one:
    beside norms and products apart.
    """
    for module in (ahead, ahead_added):
        monkeypatch.setattr(module, "multiprocessors", lambda _: multiprocessors)
    case = Case(rows, hidden, inner, kind, parallel)
    case.check(both_emulated, torch.device("cpu"))


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("parallel", [False, True], ids=["one", "two"])
@pytest.mark.parametrize(
    ("rows", "hidden", "inner"),
    [(1, 2048, 5632), (8, 4096, 11008), (15, 2000, 520), (16, 4096, 14336), (14, 768, 3072)],
)
def test_a_norm_between_two_products_takes_no_kernel_on_hopper(
    rows: int, hidden: int, inner: int, parallel: bool, kind: str, hopper: torch.device
) -> None:
    Case(rows, hidden, inner, kind, parallel).check(lambda late: nullcontext(), hopper)


@dataclass(frozen=True)
class Case:
    """Products and norms; `parallel`: the first sum has two terms."""

    rows: int
    hidden: int
    inner: int
    kind: str
    parallel: bool

    def normed(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        x, weight = x.double(), norm.weight.double() + (self.kind == "offset_rms")
        if self.kind == "layer":
            x = x - x.mean(1, keepdim=True)
        y = x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * weight
        return y if norm.bias is None else y + norm.bias.double()

    def check(self, where: Any, device: torch.device) -> None:
        number, hidden, inner = torch.bfloat16, self.hidden, self.inner

        def weight(n: int, k: int, seed: int) -> torch.Tensor:
            return drawn(n, k, number, device, seed) / k**0.5

        def vector(seed: int) -> torch.Tensor:
            return drawn(1, hidden, number, device, seed)[0] / 4

        layer = self.kind == "layer"
        norms = [
            Norm(1 + vector(i), EPS, self.kind, vector(i + 1) if layer else None) for i in (12, 16)
        ]
        both, down, after = (
            weight(2 * inner, hidden, 1),
            weight(hidden, inner, 2),
            weight(96, hidden, 3),
        )
        stream = 3 * drawn(self.rows, hidden, number, device, 10) + (2 if layer else 0)
        attended = drawn(self.rows, hidden, number, device, 11)
        terms = [Term(attended, weight(hidden, hidden, 0), vector(14))]
        if self.parallel:
            terms.append(Term(drawn(self.rows, inner, number, device, 15), down, vector(18)))
        with where([term.x for term in terms] + [stream]):
            left = ahead_added.added(terms, stream, norms[0])
        late = [left.weighted, left.norm.squares]
        with where(late):
            middle = ahead.gated(left.weighted, both, "silu", left.norm, None, number)
        with where([middle, left.stream]):
            last = ahead_added.added([Term(middle, down)], left.stream, norms[1])
        with where([last.weighted, last.norm.squares]):
            end = ahead.linear(last.weighted, after, None, last.norm, None, number).sum(0)

        added = [t.x.double() @ t.w.double().T + t.bias.double() for t in terms]
        assert_close(left.stream, sum(added, stream.double()))
        assert_close(left.norm.squares.sum(0), left.stream.double().square().sum(1))
        gate, up = (self.normed(left.stream, norms[0]) @ both.double().T).chunk(2, 1)
        assert_close(middle, gate * gate.sigmoid() * up)
        assert_close(last.stream, left.stream.double() + middle.double() @ down.double().T)
        assert_close(end, self.normed(last.stream, norms[1]) @ after.double().T)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.isfinite().all()
    assert (found.double() - expected).norm() <= 5e-3 * expected.norm()
