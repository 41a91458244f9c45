"""Bytes and FLOPs of a run, counted on the host, and the device's measured peaks: the bound, MFU
and MBU.

Decoding is bound by bytes. Every forward pass of a step, the target's and each of the drafter's,
reads its model's weights once, and the keys and values of the positions that its tokens attend to:

    time >= (sum over passes of weight_bytes + kv_bytes) / bandwidth

Of a mixture of experts, a pass reads the expected number of those that its tokens choose.

    drafter --> LoggedScorer --> ModelScorer      PassLog: [(cost, columns), ...]
                                                      |
    lengths of the rows, from the step's report ------+--> bytes and FLOPs

A scorer records a pass when it launches it, or when a graph captures it. A drafter with a model
needs no code for this: the scorers of its `DrafterContext` are logged. Its pass i, counted from 0,
is taken to feed the rows that drafted more than i tokens; the first one feeds all rows, from their
last committed tokens on. That is what a drafter does that feeds one token after the other. A head
counts its own passes (`DrafterContext.count`). Of an ensemble it is an estimate: rows that another
part drafted count too. A CUDA graph runs all k draft passes for any lengths; only those that some
active row needed are counted.
"""

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import nn

from bass.drafters.heads import DraftHead
from bass.interfaces import ForwardingRowStore, RowStore, Scorer
from bass.models.decoder import CausalDecoder
from bass.ops.experts import Experts
from bass.records import DecoderShape, Features, Scored, Window

# lookup tables: a pass reads a few of their rows, unless the table is also the head
LOOKED_UP = ("embed", "position_embed")


@dataclass(frozen=True)
class Work:
    """Bytes to move, and FLOPs, without those of attention."""

    bytes: int
    flops: int

    def __add__(self, other: "Work") -> "Work":
        return Work(self.bytes + other.bytes, self.flops + other.flops)


NO_WORK = Work(0, 0)


@dataclass(frozen=True)
class PassCost:
    """Cost of one forward pass of a model: bytes of weights that every pass reads, FLOPs per token
    fed, KV bytes per row and position.

    windows: for each layer, the number of positions that a query sees; None: all. expert_bytes:
    bytes of the experts of all layers, of which a pass reads those that some token chose: of
    `experts` in a layer each token chooses `chosen_experts`.
    """

    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_position: int
    windows: tuple[int | None, ...] = ()
    expert_bytes: int = 0
    experts: int = 0
    chosen_experts: int = 0

    @functools.cached_property
    def layers(self) -> dict[int | None, int]:
        """The number of layers with each attention window."""
        return dict(Counter(self.windows))

    def bytes_read(self, tokens: int) -> int:
        """The expected bytes of weights that a pass over this number of tokens reads, if all tokens
        choose their experts at random.
        """
        if not self.experts:
            return self.weight_bytes
        share = 1 - (1 - self.chosen_experts / self.experts) ** tokens
        return self.weight_bytes + round(self.expert_bytes * share)

    def work(
        self,
        columns: "int | Int[np.ndarray, '*passes rows']",
        visible: Int[np.ndarray, "*passes batch"],
        rows: Bool[np.ndarray, "*passes batch"],
    ) -> Work:
        """Work of passes of these rows; one that feeds no token counts nothing.

        Of several passes, all have a first axis of passes. columns: tokens fed to each row, or as
        many as it has. visible: positions up to the last of them.
        """
        tokens = np.minimum(columns, visible).clip(0) * rows
        counts = [count for count in np.atleast_1d(tokens.sum(-1)).tolist() if count]
        positions = 0
        for window, layers in self.layers.items():
            seen = visible if window is None else np.minimum(visible, tokens + window - 1)
            positions += layers * int((seen * (tokens > 0)).sum())
        keys = positions * (self.kv_bytes_per_position // max(len(self.windows), 1))
        moved = keys + sum(map(self.bytes_read, counts))
        return Work(moved, sum(counts) * self.flops_per_token)


def pass_cost(
    decoder: CausalDecoder | DraftHead, layers: int | None = None, has_head: bool = True
) -> PassCost:
    """Cost of a pass through the first `layers` layers (None: all), then the norm and head if
    `has_head`; of a `DraftHead`, of all that a pass which drafts runs.

    All weights of these count except lookup tables, and experts apart. Bytes are those of the
    stored, possibly quantized weights; FLOPs follow the unquantized shapes.
    """
    if isinstance(decoder, DraftHead):
        return module_cost(decoder.drafting(), decoder.shape, next(decoder.parameters()).dtype)
    layers = decoder.shape.layers if layers is None else layers
    blocks = tuple(f"blocks.{i}." for i in range(layers))
    whole = type(decoder)(decoder.config, torch.device("meta"), torch.float32)  # pyright: ignore[reportCallIssue]

    def read(one: CausalDecoder) -> list[torch.Tensor]:
        tied = one.head is None or any(p is one.embed for p in one.head.parameters())
        looked_up = [name for name in LOOKED_UP if not (tied and name == "embed")]
        return [
            p
            for name, p in one.named_parameters()
            if name.startswith(blocks)
            or (has_head and name not in looked_up and not name.startswith("blocks."))
        ]

    def experts(one: CausalDecoder) -> list[Experts]:
        named = one.named_modules()
        return [m for name, m in named if isinstance(m, Experts) and name.startswith(blocks)]

    shape = replace(decoder.shape, rules=decoder.shape.rules[:layers])
    return _cost(
        (read(decoder), experts(decoder)), (read(whole), experts(whole)), shape, decoder.embed.dtype
    )


def head_cost(decoder: CausalDecoder) -> PassCost:
    """Cost of the product with a decoder's head."""
    matrix = decoder.embed if decoder.head is None else next(decoder.head.parameters())
    return PassCost(matrix.nbytes, 2 * decoder.shape.vocab_size * decoder.embed.shape[1], 0)


def module_cost(
    modules: Sequence[nn.Module], shape: DecoderShape | None, dtype: torch.dtype
) -> PassCost:
    """Cost of a pass of a drafter's own modules: all of their parameters, and experts apart.

    shape: of those that attend to a cache. FLOPs are those of matrix products.
    """
    stored = [p for one in modules for p in one.parameters()]
    experts = [m for one in modules for m in one.modules() if isinstance(m, Experts)]
    matrices = [p for p in stored if p.ndim > 1]
    return _cost((stored, experts), (matrices, experts), shape, dtype)


Weights = tuple[Sequence[torch.Tensor], list[Experts]]  # and the experts among them


def _cost(
    stored: Weights, counted: Weights, shape: DecoderShape | None, dtype: torch.dtype
) -> PassCost:
    """Cost of a pass that reads `stored`; FLOPs are those of `counted`, without unused experts."""
    (weights, experts), (numbers, all_experts) = stored, counted
    expert_bytes = sum(p.nbytes for m in experts for p in m.parameters())
    unused = sum(
        p.numel() * (m.count - m.chosen) // m.count for m in all_experts for p in m.parameters()
    )
    return PassCost(
        sum(p.nbytes for p in weights) - expert_bytes,
        2 * (sum(p.numel() for p in numbers) - unused),
        0 if shape is None else kv_bytes(shape, shape.layers, dtype),
        () if shape is None else tuple(rule.window for rule in shape.rules),
        expert_bytes,
        *((experts[0].count, experts[0].chosen) if experts else ()),
    )


def kv_bytes(shape: DecoderShape, layers: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of a row's position in this number of layers."""
    return 2 * layers * shape.kv_heads * shape.head_dim * dtype.itemsize


ALL = 2**32  # `Pass.last` where every column feeds each row; more columns than there are


class Pass(NamedTuple):
    """A forward pass in a step: its cost, and which of its columns feed a token of a row.

        committed | drafted                     of a row that drafted n tokens
        ...  -1 0 | 1  2 .. n                   places

    Column i is of place `first` + i. It feeds a row up to the place n + `last`; n is the number of
    its drafted tokens or, if `observed`, of those that the step committed.
    """

    cost: PassCost
    columns: int
    first: int = 0
    last: int = -1
    observed: bool = False


@final
@dataclass
class PassLog:
    """Forward passes since the last `take`.

    target: cost of the target's pass, which is not recorded: each step has exactly one. prompt: of
    one that scores no token.
    """

    target: PassCost | None = None
    prompt: PassCost | None = None
    passes: list[Pass] = field(default_factory=list)

    def add(self, cost: PassCost, columns: int) -> None:
        """Record the next pass of a scorer, after those of the same cost."""
        before = sum(one.cost == cost for one in self.passes)
        self.passes.append(Pass(cost, columns, before + 1 - columns, -1 if before else ALL))

    def fed(self, tokens: int) -> Work:
        """The work of tokens of prompts in the target's pass."""
        return Work(0, 0 if self.prompt is None else tokens * self.prompt.flops_per_token)

    def take(self) -> tuple[Pass, ...]:
        """Return the recorded passes and clear the log."""
        taken = tuple(self.passes)
        self.passes.clear()
        return taken


@final
@dataclass(frozen=True)
class LoggedScorer(ForwardingRowStore, Scorer):
    """Records every pass of `scorer`.

    fill_cost: cost of a pass that only writes keys and values; None: another scorer fills,
    reserves and copies the storage.
    """

    scorer: Scorer
    log: PassLog
    cost: PassCost
    fill_cost: PassCost | None

    @property
    def store(self) -> RowStore:
        return RowStore() if self.fill_cost is None else self.scorer

    @property
    def fills(self) -> bool:
        return self.fill_cost is not None

    def fill(self, window: Window) -> Features:
        if self.fill_cost is not None:
            self.log.add(self.fill_cost, window.positions.shape[1])
        return super().fill(window)

    def __call__(self, window: Window) -> Scored:
        self.log.add(self.cost, window.positions.shape[1])
        return self.scorer(window)


def work_of(
    passes: tuple[Pass, ...],
    caught_up: tuple[tuple[Pass, ...], Int[np.ndarray, " batch"]] | None,
    target: PassCost | None,
    lens: Int[np.ndarray, " batch"],
    drafted: Int[np.ndarray, " batch"],
    emitted: Int[np.ndarray, " batch"],
    active: np.ndarray,
    trimmed: Int[np.ndarray, " batch"] | int = 0,
) -> Work:
    """Work of a step; `lens` are the committed tokens of each row before it, `trimmed` the drafted
    tokens beyond the verified ones, which are `drafted`.

    passes: those of the drafter in the step. caught_up: those just before it, and how many tokens
    of each row they feed, the last ones; of each row, one reads the keys. The target's pass covers
    each row's window.
    """
    work = NO_WORK
    if caught_up is not None:
        fed, tokens = caught_up
        for cost, passes_of_it in Counter(one.cost for one in fed).items():
            again = (passes_of_it - 1) * cost.weight_bytes
            work += cost.work(tokens, lens - 1, active) + Work(again, 0)
    same: dict[PassCost, list[Pass]] = {}
    for one in passes:
        same.setdefault(one.cost, []).append(one)
    for cost, alike in same.items():
        numbers = np.array([one[1:] for one in alike])[..., None]
        columns, first, last, observed = numbers.swapaxes(0, 1)
        new = np.where(observed, emitted, drafted + trimmed)
        end = np.minimum(first + columns - 1, new + last)
        fed = active & ((new > 0) | (last == ALL))
        work += cost.work((end - first + 1).clip(0), lens + end, fed)
    return work if target is None else work + target.work(drafted + 1, lens + drafted, active)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of a device: bandwidth of a large read, FLOP/s of a large product."""

    bandwidth: float
    flops: float


@functools.cache
def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Measure a sum over 4 GiB, or a quarter of the free memory if that is less (256 MiB on a CPU),
    and products of 1, 16 and as many rows with a square matrix, of which the fastest counts; each
    the best of 5 runs.

    It takes a quarter of a second on a CPU, where the matrices are smaller without instructions for
    the type.
    """
    if device.type == "cuda":
        size = min(2**32, torch.cuda.mem_get_info(device)[0] // 4)
        side = math.isqrt(size) // 64 * 8
    else:
        square = torch.randn(256, 256).to(dtype)
        size, side = 2**28, 256 if _seconds(lambda: square @ square, device, 2) > 0.005 else 1024
    data = torch.ones(size // dtype.itemsize, device=device, dtype=dtype)
    square = torch.randn(side, side, device=device).to(dtype)
    flops = 0.0
    for rows in (1, 16, side):  # some CPUs compute few rows faster than many in half precision
        x = square[:rows]
        flops = max(flops, 2 * rows * side**2 / _seconds(lambda x=x: x @ square, device))
    return Peaks(size / _seconds(data.sum, device), flops)


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The shortest time of several runs."""
    return min(timed(work, device) for _ in range(repeats))


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of `work` and of what it launches on the device."""
    wait = torch.get_device_module(device).synchronize
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began
