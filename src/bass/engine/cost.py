"""Bytes and FLOPs of a run, and the device's measured peaks: the bound, MFU and MBU.

Decoding is bound by bytes. Every forward pass of a step, the target's and each of the drafter's,
reads its model's weights once, and the keys and values of the positions that its tokens attend to:

    time >= (sum over passes of weight_bytes + kv_bytes) / bandwidth

Of a mixture of experts, a pass reads the expected number of those that its tokens choose.

A pass counts if some active row feeds a token in it. A CUDA graph runs all k draft passes for any
lengths; only those that some row needed are counted.
"""

import functools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int

from bass.errors import is_out_of_memory
from bass.models.decoder import CausalDecoder
from bass.ops.experts import Experts

# lookup tables: a pass reads a few of their rows, unless the table is also the head
LOOKED_UP = ("embed", "places")


@dataclass(frozen=True)
class ModelCost:
    """Costs of one model: bytes of weights that every pass reads, FLOPs per token fed, KV bytes per
    row and position.

    expert_bytes: bytes of the experts of all layers, of which a pass reads those that some token
    chose: of `experts` in a layer each token chooses `chosen_experts`.
    """

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "weight_bytes",
        "flops_per_token",
        "kv_bytes_per_position",
    )
    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_position: int
    expert_bytes: int = 0
    experts: int = 0
    chosen_experts: int = 0

    def __add__(self, other: "ModelCost") -> "ModelCost":
        assert not (self.experts and other.experts), "two mixtures have no cost in common"
        return ModelCost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def stored(self) -> dict[str, int]:
        """The fields for a record, those of experts only if there are some."""
        return {
            name: value
            for name, value in vars(self).items()
            if self.experts or name in ModelCost.ALWAYS
        }

    def bytes_read(self, tokens: int) -> int:
        """The expected bytes of weights that a pass over this number of tokens reads."""
        if not self.experts:
            return self.weight_bytes
        read = expected_experts(self.experts, self.chosen_experts, tokens)
        return self.weight_bytes + round(self.expert_bytes * read / self.experts)


def expected_experts(experts: int, chosen: int, tokens: int) -> float:
    """The expected number of a layer's experts that some token chooses, if all choose at random."""
    return experts * (1 - (1 - chosen / experts) ** tokens)


NOTHING = ModelCost(0, 0, 0)


@dataclass(frozen=True)
class PairCost:
    """The costs of a target and a draft (`NOTHING` where there is none)."""

    target: ModelCost
    draft: ModelCost


@dataclass(frozen=True)
class Work:
    """Bytes to move, FLOPs, and the FLOPs spent on tokens whose next token was committed.

    The FLOPs of attention are not counted.
    """

    bytes: int
    flops: int
    flops_kept: int

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.bytes + other.bytes, self.flops + other.flops, self.flops_kept + other.flops_kept
        )


NO_WORK = Work(0, 0, 0)


@dataclass(frozen=True)
class PassCost:
    """Cost of one forward pass of a model.

    windows: for each layer, the number of positions that a query sees; None: all.
    """

    model: ModelCost
    windows: tuple[int | None, ...]

    @functools.cached_property
    def layers(self) -> dict[int | None, int]:
        """The number of layers with each attention window."""
        return dict(Counter(self.windows))

    def work(
        self,
        columns: "int | Int[np.ndarray, '*passes rows']",
        visible: Int[np.ndarray, "*passes batch"],
        rows: Bool[np.ndarray, "*passes batch"],
        ends: Int[np.ndarray, " batch"],
    ) -> "Work":
        """Work of passes of these rows; one that feeds no token counts nothing.

        Of several passes, all but `ends` have a first axis of passes. columns: tokens fed to each
        row, or as many as it has. visible: positions up to the last of them. ends: each row's last
        committed position after the step; `flops_kept` counts the tokens whose next token was
        committed.
        """
        tokens = np.minimum(columns, visible).clip(0) * rows
        counts = [count for count in np.atleast_1d(tokens.sum(-1)).tolist() if count]
        positions = 0
        for window, layers in self.layers.items():
            seen = visible if window is None else np.minimum(visible, tokens + window - 1)
            positions += layers * int((seen * (tokens > 0)).sum())
        keys = positions * (self.model.kv_bytes_per_position // max(len(self.windows), 1))
        kept = int((np.minimum(visible, ends) - (visible - tokens)).clip(0, tokens).sum())
        flops = self.model.flops_per_token
        moved = keys + sum(map(self.model.bytes_read, counts))
        return Work(moved, sum(counts) * flops, kept * flops)


def total(work: Iterable[Work]) -> Work:
    """Sum of the work."""
    return sum(work, NO_WORK)


def model_cost(
    decoder: CausalDecoder, layers: int | None = None, has_head: bool = True
) -> ModelCost:
    """Cost of a pass through the first `layers` layers (None: all), then the norm and head if
    `has_head`.

    All weights of these count except lookup tables, and experts apart. Bytes are those of the
    stored, possibly quantized weights; FLOPs follow the unquantized shapes.
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

    def experts(one: CausalDecoder) -> list[Experts]:
        named = one.named_modules()
        return [m for name, m in named if isinstance(m, Experts) and name.startswith(blocks)]

    sparse = experts(decoder)
    expert_bytes = sum(p.nbytes for m in sparse for p in m.parameters())
    unused = sum(
        p.numel() * (m.count - m.chosen) // m.count for m in experts(whole) for p in m.parameters()
    )
    kv_bytes = 2 * layers * c.kv_heads * c.head_dim * decoder.embed.element_size()
    return ModelCost(
        sum(p.nbytes for p in read(decoder)) - expert_bytes,
        2 * (sum(p.numel() for p in read(whole)) - unused),
        kv_bytes,
        expert_bytes,
        *((sparse[0].count, sparse[0].chosen) if sparse else ()),
    )


def pass_cost(decoder: CausalDecoder, layers: int | None = None) -> PassCost:
    """Cost of a pass that returns logits, through all layers or the first `layers`."""
    return PassCost(model_cost(decoder, layers), _windows(decoder, layers))


def fill_cost(decoder: CausalDecoder) -> PassCost:
    """Cost of a pass that only writes keys and values: it skips the last layer and the head."""
    layers = decoder.shape.layers - 1
    return PassCost(model_cost(decoder, layers, has_head=False), _windows(decoder, layers))


def _windows(decoder: CausalDecoder, layers: int | None) -> tuple[int | None, ...]:
    return tuple(rule.window for rule in decoder.shape.rules[:layers])


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of a device: bandwidth of a large read, FLOP/s of a large product."""

    bandwidth: float
    flops: float


@functools.cache
def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Measure a sum over 4 GiB (256 MiB on a CPU), and products of 1, 16 and as many rows with a
    square matrix, of which the fastest counts; each the best of 5 runs.

    It takes a quarter of a second on a CPU. Sizes shrink if memory is short, and the matrices on a
    CPU without instructions for the type.
    """
    if device.type == "cpu":
        square = torch.randn(256, 256).to(dtype)
        slow = min(_seconds(lambda: square @ square, device) for _ in range(2)) > 0.005
        return _peaks(device, dtype, 256 if slow else 1024, 2**28)
    for side, size in ((8192, 2**32), (4096, 2**30), (2048, 2**28)):
        try:
            return _peaks(device, dtype, side, size)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    return _peaks(device, dtype, 1024, 2**26)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a large copy, the best of 5.

    The copy has 4 GiB (256 MiB on a CPU), less where memory is short. On a GPU it is not captured:
    in a graph a copy is a third faster.
    """
    for size in (2**28,) if device.type == "cpu" else (2**32, 2**30, 2**28):
        try:
            return _copied(device, size)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    return _copied(device, 2**26)


def _copied(device: torch.device, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)  # a first write maps the pages
    return 2 * size / min(_seconds(lambda: target.copy_(source), device) for _ in range(5))


def _peaks(device: torch.device, dtype: torch.dtype, side: int, size: int) -> Peaks:
    data = torch.ones(size // dtype.itemsize, device=device, dtype=dtype)
    square = torch.randn(side, side, device=device).to(dtype)
    read = min(_seconds(lambda: data.sum(), device) for _ in range(5))
    flops = 0.0
    for rows in (1, 16, side):  # some CPUs compute few rows faster than many in half precision
        x = square[:rows]
        seconds = min(_seconds(lambda x=x: x @ square, device) for _ in range(5))
        flops = max(flops, 2 * rows * side**2 / seconds)
    return Peaks(size / read, flops)


def _seconds(work: object, device: torch.device) -> float:
    assert callable(work)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
