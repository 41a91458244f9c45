"""What a run must move and compute, and how fast this machine can: the bound, MFU and MBU.

Decoding is bound by bytes. Every forward pass of a step, the target's and each of the drafter's,
reads its model's weights once, and the keys and values of the positions that its tokens attend to:

    time >= (sum over passes of weight_bytes + kv_bytes) / bandwidth

Counted are passes in which some active row feeds a token. So a step of a CUDA graph, in which all k
draft passes run whatever the rows' lengths, counts those that some row needed.
"""

import functools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass

import numpy as np
import torch
from jaxtyping import Int

from bass.errors import is_out_of_memory
from bass.models.decoder import CausalDecoder

# tables of which a pass reads a few rows, unless they are the head too
LOOKED_UP = ("embed", "places")


@dataclass(frozen=True)
class ModelCost:
    """One model's share: bytes of weights read per pass, FLOPs per token fed, KV bytes per row and
    position.
    """

    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_position: int

    def __add__(self, other: "ModelCost") -> "ModelCost":
        return ModelCost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NOTHING = ModelCost(0, 0, 0)


@dataclass(frozen=True)
class PairCost:
    """The costs of a target and a draft (`NOTHING` where there is none)."""

    target: ModelCost
    draft: ModelCost


@dataclass(frozen=True)
class Work:
    """Bytes that must be moved, FLOPs done, and those of them that were done for tokens whose
    successor was committed.

    FLOPs of attention are left out.
    """

    bytes: int
    flops: int
    flops_kept: int

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NO_WORK = Work(0, 0, 0)


@dataclass(frozen=True)
class PassCost:
    """What a forward pass of a model costs.

    `windows`: how many positions a query of each layer sees; None: all.
    """

    model: ModelCost
    windows: tuple[int | None, ...]

    @functools.cached_property
    def layers(self) -> dict[int | None, int]:
        """How many layers have each window."""
        return dict(Counter(self.windows))

    def keys(self, tokens: Int[np.ndarray, " batch"], visible: Int[np.ndarray, " batch"]) -> int:
        """Bytes of keys and values that rows read which feed so many tokens, up to so many
        positions; 0 and 0: none.
        """
        places = 0
        for window, layers in self.layers.items():
            seen = (
                visible
                if window is None
                else np.minimum(visible, (tokens + window - 1) * (tokens > 0))
            )
            places += layers * int(seen.sum())
        return places * (self.model.kv_bytes_per_position // max(len(self.windows), 1))


Layout = tuple[tuple[PassCost, int], ...]  # of each pass, its cost and its columns


def work_of_passes(
    layout: Layout, positions: Int[np.ndarray, "batch columns"], ends: Int[np.ndarray, " batch"]
) -> Work:
    """Of passes over these positions, side by side, -1 where a row feeds no token; nothing for a
    pass that feeds none.

    ends: each row's last committed position after the step. A token is kept if the one after it was
    committed.
    """
    if not layout:
        return NO_WORK
    costs, widths = zip(*layout, strict=True)
    first = np.cumsum((0, *widths[:-1]))
    fed = positions >= 0
    visible = np.maximum.reduceat(positions, first, 1) + 1
    tokens, kept = (
        np.add.reduceat(what, first, 1, dtype=np.int64)
        for what in (fed, fed & (positions < ends[:, None]))
    )
    moved = flops = flops_kept = 0
    for i, (cost, count, of_text) in enumerate(
        zip(costs, tokens.sum(0).tolist(), kept.sum(0).tolist(), strict=True)
    ):
        if count:
            moved += cost.model.weight_bytes + cost.keys(tokens[:, i], visible[:, i])
            flops += count * cost.model.flops_per_token
            flops_kept += of_text * cost.model.flops_per_token
    return Work(moved, flops, flops_kept)


def total(work: Iterable[Work]) -> Work:
    """The sum."""
    return sum(work, NO_WORK)


def model_cost(
    decoder: CausalDecoder, layers: int | None = None, has_head: bool = True
) -> ModelCost:
    """Of a pass through the first `layers` (None: all), then the norm and the head unless it ends
    there.

    All their weights are read but tables that are looked up. Their bytes are counted as they are
    held, and their numbers as they were before a quantization may have packed them.
    """
    c = decoder.shape
    layers = c.layers if layers is None else layers
    blocks = tuple(f"blocks.{i}." for i in range(layers))
    whole = type(decoder)(decoder.config, torch.device("meta"), torch.float32)  # pyright: ignore[reportCallIssue]

    def read(one: CausalDecoder) -> list[torch.Tensor]:
        tied = one.head is None or any(p is one.embed for p in one.head.parameters())
        looked_up = tuple(name for name in LOOKED_UP if not (tied and name == "embed"))
        named = [(name, p) for name, p in one.named_parameters() if name not in looked_up]
        return [
            p
            for name, p in named
            if name.startswith(blocks) or (has_head and not name.startswith("blocks."))
        ]

    kv_bytes = 2 * layers * c.kv_heads * c.head_dim * decoder.embed.element_size()
    return ModelCost(
        sum(p.nbytes for p in read(decoder)), 2 * sum(p.numel() for p in read(whole)), kv_bytes
    )


def pass_cost(decoder: CausalDecoder, layers: int | None = None) -> PassCost:
    """Of a pass that gives logits, by all layers or the first ones."""
    return PassCost(model_cost(decoder, layers), _windows(decoder, layers))


def fill_cost(decoder: CausalDecoder) -> PassCost:
    """Of a pass that only writes keys and values: the last layer's queries and all that follows are
    left out.
    """
    layers = decoder.shape.layers - 1
    return PassCost(model_cost(decoder, layers, has_head=False), _windows(decoder, layers))


def _windows(decoder: CausalDecoder, layers: int | None) -> tuple[int | None, ...]:
    return tuple(rule.window for rule in decoder.shape.rules[:layers])


@dataclass(frozen=True)
class Peaks:
    """Measured ceilings of the device: bytes per second of a large read, FLOPs per second of a
    large matrix product.
    """

    bandwidth: float
    flops: float


@functools.cache
def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Time a sum over 256 MiB, on a GPU 4 GiB, and a square matrix product, the best of 5; a
    quarter of a second on a CPU.

    Where there is no room for that: over less, and a smaller product.
    """
    if device.type == "cpu":
        return _peaks(device, dtype, 1024, 2**28)
    for side, size in ((8192, 2**32), (4096, 2**30), (2048, 2**28)):
        try:
            return _peaks(device, dtype, side, size)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    return _peaks(device, dtype, 1024, 2**26)


def _peaks(device: torch.device, dtype: torch.dtype, side: int, size: int) -> Peaks:
    data = torch.ones(size // dtype.itemsize, device=device, dtype=dtype)
    square = torch.randn(side, side, device=device).to(dtype)
    read = min(_seconds(lambda: data.sum(), device) for _ in range(5))
    multiply = min(_seconds(lambda: square @ square, device) for _ in range(5))
    return Peaks(bandwidth=size / read, flops=2 * side**3 / multiply)


def _seconds(work: object, device: torch.device) -> float:
    assert callable(work)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
