"""Tier 3: attention of a window in one kernel equals rotary embedding, store and attention,
emulated and on Hopper.
"""

import itertools
from typing import Any

import pytest
import torch

from bass.kernels.values import Norm
from bass.ops.attention import reference
from bass.records import AttentionRule, RaggedView
from support.gluon import emulated

products: Any = pytest.importorskip("bass.kernels.hopper.gemm")
ahead: Any = pytest.importorskip("bass.kernels.hopper.attention")  # needs the Gluon of Triton 3.6

CASES = list(
    itertools.product(
        ((2, 1, 64), (2, 4, 128), (1, 8, 64), (1, 1, 128), (2, 2, 256)),
        (1, 4, 7, 17),
        (1, 3),
        (None, 37),
        (None, 20.0, "sinks"),
        (("rms", True), (None, False), (None, True), ("offset_rms", False)),
    )
)
EPS = 0.3
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def as_many_multiprocessors_as_hopper_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "multiprocessors", lambda _: 132)


class Window:
    """Four rows of a pool full of NaN: an empty one, one that is nobody's, one whose window ends
    early, one of several tiles of keys.
    """

    def __init__(self, case: Any, kind: torch.dtype, device: torch.device) -> None:
        (
            (self.kv_heads, self.groups, self.dim),
            self.queries,
            self.parts,
            self.window,
            last,
            (self.norm, self.rotary),
        ) = case
        torch.manual_seed(0)
        self.sinks = 2 * torch.randn(self.kv_heads * self.groups) if last == "sinks" else None
        self.softcap = None if last == "sinks" else last
        lengths = [0, 5, 64, 390]
        self.starts = torch.tensor([0, 200, 400, 600])
        self.positions = torch.tensor(lengths)[:, None] + torch.arange(self.queries)
        self.positions[1], self.positions[2, 2:] = -1, -1
        pool = torch.full((2, 1100, self.kv_heads, self.dim), float("nan"))
        for start, length in zip(self.starts.tolist(), lengths, strict=True):
            pool[:, start : start + length] = torch.randn(2, length, self.kv_heads, self.dim)
        self.k, self.v = pool.to(kind)
        summands = torch.randn(
            self.parts, 4, self.queries, self.kv_heads * (self.groups + 2), self.dim
        )
        summands[:, self.positions < 0] = float("nan")  # nobody's
        self.summands = summands.to(kind) if self.parts == 1 else summands
        angles = torch.rand(420, self.dim) * 6
        self.cos, self.sin = angles.cos(), angles.sin()
        every = self.kv_heads * (self.groups + 1)
        q_by, k_by = torch.rand(2, 1, self.dim)
        weight = torch.cat([q_by.expand(every - self.kv_heads, -1), k_by.expand(self.kv_heads, -1)])
        self.weight = weight.to(kind).flatten()
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(device))

    def expected(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(what the queries find, k, v)."""
        k, v, here = self.k.clone(), self.v.clone(), self.positions.clamp(min=0)
        y, heads = self.summands.float().sum(0), self.kv_heads * self.groups
        rotated = y[:, :, : heads + self.kv_heads]
        if self.norm is not None:
            by = self.weight.float().view(-1, self.dim) + (self.norm == "offset_rms")
            rotated = rotated * (rotated.square().mean(-1, keepdim=True) + EPS).rsqrt() * by
        if self.rotary:
            low, high = rotated.chunk(2, -1)
            cos, sin = self.cos[here][:, :, None], self.sin[here][:, :, None]
            rotated = rotated * cos + torch.cat([high, low], -1) * sin
        row, query = (self.positions >= 0).nonzero(as_tuple=True)
        slots = (self.starts[:, None] + here)[row, query]
        k[slots] = rotated[row, query, heads : heads + self.kv_heads].to(k.dtype)
        v[slots] = y[row, query, heads + self.kv_heads :].to(v.dtype)
        q = rotated[:, :, :heads].to(k.dtype)
        pools, rule = (
            (k.nan_to_num(), v.nan_to_num()),
            AttentionRule(0.2, self.window, self.softcap),
        )
        return (
            reference(q, RaggedView(*pools, self.starts), self.positions, 420, rule, self.sinks),
            k,
            v,
        )

    def check(self, late: bool) -> None:
        out, k, v = self.expected()
        arguments = (
            self.summands,
            None if self.norm is None else Norm(self.weight, EPS, self.norm),
            (self.cos, self.sin) if self.rotary else None,
            self.k,
            self.v,
            self.starts,
            self.positions,
            0.2,
            self.window,
            self.softcap,
            self.sinks,
        )
        assert ahead.supports(self.summands, self.k, self.v, 512)
        if late:
            with emulated(ahead, [self.summands]), emulated(products):
                found = ahead.ragged(*arguments)
        else:
            found = ahead.ragged(*arguments)
        tolerance = TOLERANCE[k.dtype]
        assert found.isfinite().all()
        assert (found.double() - out.double()).norm() <= tolerance * out.double().norm()
        assert (found[self.positions < 0] == 0).all()
        for ours, theirs in ((self.k, k), (self.v, v)):
            assert torch.equal(ours.isnan(), theirs.isnan())
            assert (
                ours.nan_to_num().double() - theirs.nan_to_num().double()
            ).norm() <= tolerance * theirs.nan_to_num().double().norm()


@pytest.mark.parametrize("kind", TOLERANCE, ids=str)
def test_one_kernel_rotates_stores_attends_as_three_do(kind: torch.dtype) -> None:
    for case in CASES[:: 17 if kind == torch.bfloat16 else 29]:
        if case[0][1] * case[1] <= ahead.MOST_ROWS[case[0][2]]:
            Window(case, kind, torch.device("cpu")).check(late=True)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_on_hopper(case: Any, kind: torch.dtype, device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")
    if case[0][1] * case[1] <= ahead.MOST_ROWS[case[0][2]]:
        Window(case, kind, device).check(late=False)


def test_two_tiles_at_least_are_in_flight() -> None:
    """With one, logits were not finite in whole runs on a GPU, and why is not settled
    (docs/log).
    """
    assert all(
        ahead.stages_for(programs, heads, dim, 132) >= 2
        for dim in ahead.FUSED_DIMS
        for heads in (1, 8, 64)
        for programs in (1, 264)
    )


def test_only_what_fits_is_served() -> None:
    k = torch.zeros(900, 2, 64, dtype=torch.bfloat16)
    window = torch.zeros(1, 4, 8, 6, 64)
    assert ahead.supports(window, k, k, 512)
    assert not ahead.supports(window, k, k, 513)
    assert not ahead.supports(window, k.float(), k.float(), 512)
    assert not ahead.supports(torch.zeros(1, 4, 33, 6, 64), k, k, 512)
    assert not ahead.supports(
        torch.zeros(1, 4, 8, 6, 96), *[torch.zeros(900, 2, 96, dtype=torch.bfloat16)] * 2, 512
    )
    of_256 = [torch.zeros(900, 2, 256, dtype=torch.bfloat16)] * 2
    assert ahead.supports(torch.zeros(1, 4, 4, 8, 256), *of_256, 512)
    assert not ahead.supports(torch.zeros(1, 4, 5, 8, 256), *of_256, 512)
    assert not ahead.supports(window, k.transpose(0, 1).contiguous().transpose(0, 1), k, 512)


@pytest.mark.parametrize(
    ("queries", "groups", "most"), [(1, 1, 132), (8, 1, 132), (8, 2, 132), (5, 4, 66), (32, 1, 66)]
)
def test_only_as_many_programs_are_served_as_are_there_at_once(
    queries: int, groups: int, most: int
) -> None:
    """Those of up to 16 rows two by two, those of 32 or of 256 dimensions alone."""
    k = torch.zeros(900, 2, 64, dtype=torch.bfloat16)
    assert ahead.supports(torch.zeros(1, most, queries, 2 * (groups + 2), 64), k, k, 512)
    assert not ahead.supports(torch.zeros(1, most + 1, queries, 2 * (groups + 2), 64), k, k, 512)
