"""A decoding window over full caches, for `attention.py`: the cases, and a backend's time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.interfaces import KVCache
from bass.ops.attention import reference
from bass.records import AttentionRule, CacheBudget, DecoderShape, RowAssignment

DTYPE = torch.bfloat16
SKEW = 8  # length of the longest row over that of every other one
TOLERANCE = 1e-2  # |ours - reference| / |reference|; rounding to bfloat16 alone comes to 2e-3
LEAST_SECONDS = 2e-3  # of replays between two events


class Heads(NamedTuple):
    """The heads of a target."""

    query: int
    key: int
    dim: int


PAIRS = {"paper": Heads(32, 32, 128), "llama": Heads(32, 8, 128), "toy": Heads(4, 2, 16)}


@dataclass(frozen=True)
class Case:
    """One window over caches of given lengths."""

    pair: str
    window: int
    skewed: bool
    batch: int
    context: int  # the longest row, its window included

    @property
    def lengths(self) -> np.ndarray:
        """Positions of each row, int64 [B]."""
        lengths = np.full(self.batch, self.context // SKEW if self.skewed else self.context)
        lengths[self.batch // 2] = self.context
        return lengths

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys and values that some query sees, in one layer."""
        heads = PAIRS[self.pair]
        return int(self.lengths.sum()) * heads.key * heads.dim * 2 * DTYPE.itemsize

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries and outputs, in one layer."""
        heads = PAIRS[self.pair]
        return self.batch * self.window * heads.query * heads.dim * 2 * DTYPE.itemsize

    @property
    def group(self) -> tuple[str, int, str]:
        """The values that the cases of one table share."""
        return self.pair, self.window, "skewed" if self.skewed else "equal"


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, least and most of the repeats; error: relative deviation from the
    reference.
    """

    seconds: float
    least: float
    most: float
    error: float | None


Timings = dict[Case, dict[str, Timing]]  # by backend


def cases(
    pairs: list[str], windows: list[int], batches: list[int], contexts: list[int]
) -> list[Case]:
    """All combinations, table by table; one row alone cannot be skewed."""
    return [
        Case(pair, window, skewed, batch, context)
        for pair in pairs
        for window in windows
        for skewed in (False, True)
        for batch in batches
        if batch > 1 or not skewed
        for context in contexts
    ]


def seconds_per_call(
    run: Callable[[int], Tensor], layers: int, device: torch.device, repeats: int
) -> tuple[list[float], Tensor]:
    """Seconds per call in each repeat, and the output of the last layer's call.

    On a CPU it is wall time, on a GPU that of a graph's replays.
    """
    out = run(0)  # compiles the kernels

    def work() -> None:
        nonlocal out
        for layer in range(layers):
            out = run(layer)

    if device.type == "cpu":
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            work()
            times.append((time.perf_counter() - began) / layers)
        return times, out
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def seconds(replays: int) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(replays):
            graph.replay()
        ended.record()
        torch.cuda.synchronize()
        return began.elapsed_time(ended) / 1e3 / replays

    seconds(1)  # uploads the graph
    replays = max(1, round(LEAST_SECONDS / seconds(1)))
    return [seconds(replays) / layers for _ in range(repeats)], out


def copy_bandwidth(device: torch.device, repeats: int) -> float:
    """Bytes read and written per second by a large copy, outside of a graph, where it is a third
    faster.
    """
    source = torch.ones(2**25 if device.type == "cpu" else 2**31, dtype=torch.uint8, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        times.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(times)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def filled(
    cache_class: type[KVCache[Any]], case: Case, layers: int, device: torch.device
) -> KVCache[Any]:
    """A cache of random numbers, each row with the capacity that it needs."""
    heads = PAIRS[case.pair]
    shape = DecoderShape(
        1,
        heads.query,
        heads.key,
        heads.dim,
        case.context,
        (AttentionRule(heads.dim**-0.5),) * layers,
    )
    cache: Any = cache_class.allocate(shape, CacheBudget.of(case.lengths), device, DTYPE)
    cache.reserve(RowAssignment.of(case.lengths))
    for storage in (cache.k, cache.v):
        storage.normal_()
    return cache


@torch.inference_mode()
def measure(
    case: Case, backends: list[str], device: torch.device, rotate: int, repeats: int, check: bool
) -> dict[str, Timing]:
    """Time each backend over its cache's layout.

    rotate: bytes of keys and values to read before any is read again.
    """
    heads, layers = PAIRS[case.pair], max(1, -(-rotate // case.key_bytes))
    rule = AttentionRule(heads.dim**-0.5)
    torch.manual_seed(0)
    q = torch.randn(case.batch, case.window, heads.query, heads.dim, device=device).to(DTYPE)
    positions = torch.as_tensor(case.lengths, device=device)[:, None] + torch.arange(
        -case.window, 0, device=device
    )
    found: dict[str, Timing] = {}
    for cache_class in CACHES.values():
        fitting = [name for name in backends if BACKENDS[name].view_type is cache_class.view_type]
        cache = filled(cache_class, case, layers, device) if fitting else None
        for name in fitting:
            assert cache is not None
            views, backend = [cache.view(layer) for layer in range(layers)], BACKENDS[name]()
            plan = backend.plan(positions, case.context)
            times, out = seconds_per_call(
                lambda layer, backend=backend, views=views, plan=plan: backend.run(
                    q, views[layer], plan, rule
                ),
                layers,
                device,
                repeats,
            )
            error = error_of(out, q, cache, layers - 1, positions, case, rule) if check else None
            found[name] = Timing(statistics.median(times), min(times), max(times), error)
            if error is not None and not error < TOLERANCE:
                raise SystemExit(
                    f"`{name}` is off by {error:.1e} at {case}; at most {TOLERANCE:.0e} is "
                    "rounding."
                )
    return {name: found[name] for name in backends}


def error_of(
    out: Tensor,
    q: Tensor,
    cache: KVCache[Any],
    layer: int,
    positions: Tensor,
    case: Case,
    rule: AttentionRule,
) -> float:
    """The larger |out - reference| / |reference| of two rows: the longest and the one before it."""
    rows = slice(max(case.batch // 2 - 1, 0), case.batch // 2 + 1)
    view = cache.rows(rows.start, rows.stop).view(layer)
    right = reference(q[rows], view, positions[rows], case.context, rule).double().flatten(1)
    return float(((out[rows].double().flatten(1) - right).norm(dim=1) / right.norm(dim=1)).max())
