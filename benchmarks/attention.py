"""How much of the memory bandwidth do the attention backends reach, and which one is the fastest?

    python benchmarks/attention.py [--pairs paper llama] [--windows 1 8] [--batches 1 2 4 8 16 32]
                                   [--contexts 256 512 ... 8192] [--backends pad split ragged paged
                                   sdpa] [--rotate 256] [--repeats 5] [--no-check] [--quick]

A decoding window over full caches in bfloat16, with the heads of two targets: "paper" (32 query
heads, 32 key heads of 128 dimensions) and "llama" (32 and 8). Lengths are equal, or skewed: one
row, in the middle of the batch, has the whole context, and every other row an eighth of it.

GB/s counts the keys and values that the rows need, each once, whatever a backend reads. The column
"q" is the size of queries and outputs in percent of that. The time is that of one call of `run` in
replays of a CUDA graph. The graph cycles through the caches of as many layers as hold `--rotate`
megabytes, so that every key comes from memory; the queries stay in the L2, as in a model, where the
previous kernel has just written them. `plan`, which runs once per pass for all layers, is not
timed. The paged cache assigns its blocks in the order in which it gives them to new rows. The last
output of a replay is compared with the float64 reference in two rows: the longest and the one
before it.

Prints the bound first, a table for each pair, window and kind of lengths, answers to three
questions, and one JSON line last. `--device cpu` with TRITON_INTERPRET=1 only shows that it runs.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

from bass.attention import BACKENDS
from bass.attention.reference import Reference, ReferencePaged, ReferenceRagged
from bass.caches import CACHES
from bass.engine.cost import measure_peaks
from bass.interfaces import AttentionBackend, KVCache
from bass.records import AttentionRule, CacheBudget, DecoderShape

DTYPE = torch.bfloat16
SKEW = 8  # length of the longest row over that of every other one
TOLERANCE = 1e-2  # |ours - reference| / |reference|; rounding to bfloat16 alone comes to 2e-3
LEAST_SECONDS = 2e-3  # of replays between two events
AIM = 0.7  # of the copy bandwidth, for `ragged` at this context and from this batch on
AIM_CONTEXT, AIM_BATCH = 2048, 8
SLACK = 1.03  # two times within this ratio are a tie
TWINS: dict[type, AttentionBackend[Any, Any]] = {
    cls.view_type: cls() for cls in (Reference, ReferenceRagged, ReferencePaged)
}


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
    twin = TWINS[type(view)]
    right = (
        twin.run(q[rows], view, twin.plan(positions[rows], case.context), rule).double().flatten(1)
    )
    return float(((out[rows].double().flatten(1) - right).norm(dim=1) / right.norm(dim=1)).max())


def lead(found: dict[str, Timing]) -> float | None:
    """The time of the fastest other backend over that of `ragged`; None without both."""
    others = [timing.seconds for name, timing in found.items() if name != "ragged"]
    return min(others) / found["ragged"].seconds if "ragged" in found and others else None


def reaches_the_aim(
    timings: Timings, bandwidth: float
) -> dict[tuple[str, int, str], tuple[float, Case]]:
    """For each table, the lowest share of the bandwidth that `ragged` reaches at the aim's context
    and batches, and its case.
    """
    lowest: dict[tuple[str, int, str], tuple[float, Case]] = {}
    for case, found in timings.items():
        if "ragged" in found and case.context == AIM_CONTEXT and case.batch >= AIM_BATCH:
            share = case.key_bytes / found["ragged"].seconds / bandwidth
            if case.group not in lowest or share < lowest[case.group][0]:
                lowest[case.group] = share, case
    return lowest


def slower_than_the_paper(timings: Timings) -> list[tuple[Case, str, float]]:
    """The cases in which `ragged` is slower than `pad` or `split` by more than the slack, with the
    faster one and the ratio of times.
    """
    slower = []
    for case, found in timings.items():
        papers = [name for name in ("pad", "split") if name in found]
        if "ragged" in found and papers:
            best = min(papers, key=lambda name: found[name].seconds)
            ratio = found["ragged"].seconds / found[best].seconds
            if ratio > SLACK:
                slower.append((case, best, ratio))
    return slower


def split_over_pad(timings: Timings) -> dict[Case, float]:
    """The time of `split` over that of `pad`: above 1 PAD is faster."""
    return {
        case: found["split"].seconds / found["pad"].seconds
        for case, found in timings.items()
        if {"split", "pad"} <= found.keys()
    }


def named(case: Case) -> str:
    """A case in words."""
    pair, window, lengths = case.group
    return f"{pair}, window {window}, {lengths} lengths, batch {case.batch}, context {case.context}"


def bounds(chosen: list[Case], bandwidth: float) -> Table:
    """The bound in microseconds: needed keys and values at the bandwidth."""
    contexts = sorted({case.context for case in chosen})
    table = Table(
        "pair",
        "lengths",
        "batch",
        *(_right(str(n)) for n in contexts),
        title="bound, us: needed keys and values at the copy bandwidth",
    )
    for pair, lengths, batch in dict.fromkeys(
        (case.pair, case.group[2], case.batch) for case in chosen
    ):
        of_row = {
            case.context: case
            for case in chosen
            if (case.pair, case.group[2], case.batch) == (pair, lengths, batch)
        }
        table.add_row(
            pair,
            lengths,
            str(batch),
            *(f"{of_row[n].key_bytes / bandwidth * 1e6:.1f}" for n in contexts),
        )
    return table


def rates(timings: Timings, bandwidth: float) -> Table:
    """GB/s and percent of the bandwidth for the cases of a group; the fastest of a row is bold."""
    pair, window, lengths = next(iter(timings)).group
    backends = list(next(iter(timings.values())))
    columns = [
        _right(text)
        for text in ("batch", "context", "q %", *backends, "ragged us", "over best other")
    ]
    table = Table(
        *columns,
        title=(
            f"{pair}, window {window}, {lengths} lengths: GB/s of needed keys and values, % of "
            "the copy bandwidth"
        ),
    )
    for case, found in timings.items():
        best, ratio, ours = (
            min(found, key=lambda name: found[name].seconds),
            lead(found),
            found.get("ragged"),
        )
        cells = []
        for name, timing in found.items():
            rate = case.key_bytes / timing.seconds
            cell = f"{rate / 1e9:.0f} {rate / bandwidth:4.0%}"
            cells.append(f"[bold]{cell}[/]" if name == best else cell)
        ends = (
            "" if ours is None else f"{ours.seconds * 1e6:.1f}",
            "" if ratio is None else f"{ratio:.2f}x",
        )
        table.add_row(
            str(case.batch), str(case.context), f"{case.query_bytes / case.key_bytes:.1%}", *cells,
            *ends,
            end_section=case.context == max(c.context for c in timings),
        )  # fmt: skip
    return table


def answers(timings: Timings, bandwidth: float, console: Console) -> dict[str, Any]:
    """Print the answers to the three questions, and return them for the record."""
    lowest = reaches_the_aim(timings, bandwidth)
    console.print(
        f"\n(a) Does `ragged` reach {AIM:.0%} of the copy bandwidth at context {AIM_CONTEXT} from "
        f"batch {AIM_BATCH} on?"
    )
    for (pair, window, lengths), (share, case) in lowest.items():
        verdict = "yes" if share >= AIM else "no"
        console.print(
            f"    {verdict}: {pair}, window {window}, {lengths} lengths: at least {share:.0%} "
            f"(batch {case.batch})"
        )
    if not lowest:
        console.print("    not measured")
    slower = slower_than_the_paper(timings)
    console.print(
        f"(b) `ragged` is slower than `pad` or `split` by more than {SLACK - 1:.0%} in "
        f"{len(slower)} of {len(timings)} cases"
    )
    for case, name, ratio in slower:
        console.print(f"    {named(case)}: {ratio:.2f} times as long as `{name}`")
    ratios = split_over_pad(timings)
    counts = {
        "pad": sum(ratio > SLACK for ratio in ratios.values()),
        "split": sum(ratio < 1 / SLACK for ratio in ratios.values()),
        "tie": sum(1 / SLACK <= ratio <= SLACK for ratio in ratios.values()),
    }
    console.print(
        f"(c) PAD is faster than SPLIT in {counts['pad']} cases, SPLIT in {counts['split']}, and "
        f"{counts['tie']} are within {SLACK - 1:.0%}"
    )
    if ratios:
        console.print(_grid(ratios))
    return {
        "ragged_lowest_share": {named(case): round(share, 4) for share, case in lowest.values()},
        "ragged_slower": {named(case): [name, round(ratio, 4)] for case, name, ratio in slower},
        "pad_against_split": counts,
    }


def _grid(ratios: dict[Case, float]) -> Table:
    contexts = sorted({case.context for case in ratios})
    columns = ("pair", "window", "lengths", "batch", *(_right(str(n)) for n in contexts))
    table = Table(*columns, title="time of SPLIT over that of PAD, by context")
    for group, batch in dict.fromkeys((case.group, case.batch) for case in ratios):
        of_row = {
            case.context: ratio
            for case, ratio in ratios.items()
            if (case.group, case.batch) == (group, batch)
        }
        table.add_row(
            *map(str, group),
            str(batch),
            *(f"{of_row[n]:.2f}" if n in of_row else "" for n in contexts),
        )
    return table


def _right(text: str) -> Column:
    return Column(text, justify="right", no_wrap=True)


def parse(given: list[str] | None) -> argparse.Namespace:
    """The options; `--quick` only changes the defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", default=["paper", "llama"], choices=PAIRS)
    parser.add_argument("--windows", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument(
        "--contexts", nargs="+", type=int, default=[256, 512, 1024, 2048, 4096, 8192]
    )
    capturable = [name for name, cls in BACKENDS.items() if cls.capturable]
    parser.add_argument(
        "--backends",
        nargs="+",
        default=["pad", "split", "ragged", "paged", "sdpa"],
        choices=capturable,
    )
    parser.add_argument(
        "--rotate",
        type=int,
        default=256,
        help="least megabytes of keys and values in all layers together",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--quick",
        action="store_true",
        help="window 8, batches 1 and 8, context 2048, unless they are given",
    )
    if parser.parse_args(given).quick:
        parser.set_defaults(windows=[8], batches=[1, 8], contexts=[2048], repeats=3)
    arguments = parser.parse_args(given)
    if min(arguments.contexts) // SKEW < max(arguments.windows):
        parser.error(
            f"a row of {min(arguments.contexts)} // {SKEW} positions has no room for a window of "
            f"{max(arguments.windows)}"
        )
    return arguments


def main(given: list[str] | None = None) -> None:
    """Run the cases."""
    arguments = parse(given)
    began, device, console = (
        time.perf_counter(),
        torch.device(arguments.device),
        Console(width=150, highlight=False),
    )
    for name in arguments.backends:
        BACKENDS[name]().check(device)
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    reads, copies = (
        measure_peaks(device, DTYPE).bandwidth,
        copy_bandwidth(device, arguments.repeats),
    )
    console.print(
        f"{hardware}: copies at {copies / 1e9:.0f} GB/s (read and written), reads at "
        f"{reads / 1e9:.0f} GB/s"
    )
    chosen = cases(arguments.pairs, arguments.windows, arguments.batches, arguments.contexts)
    console.print(bounds(chosen, copies))
    timings: Timings = {}
    for group in dict.fromkeys(case.group for case in chosen):
        of_group = {
            case: measure(
                case,
                arguments.backends,
                device,
                arguments.rotate * 10**6,
                arguments.repeats,
                arguments.check,
            )
            for case in chosen
            if case.group == group
        }
        console.print(rates(of_group, copies))
        timings |= of_group
    summary = answers(timings, copies, console)
    if arguments.check:
        summary["error"] = {
            name: max(found[name].error or 0.0 for found in timings.values())
            for name in arguments.backends
        }
        worst = ", ".join(f"{name} {error:.1e}" for name, error in summary["error"].items())
        console.print(
            f"Largest deviation from the float64 reference, of at most {TOLERANCE:.0e}: {worst}"
        )
    console.print(f"{len(timings)} cases in {time.perf_counter() - began:.0f} s")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    record = {
        "benchmark": "attention",
        "commit": commit,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": hardware,
        "seed": 0,
        "config": vars(arguments),
        "copy_bandwidth": copies,
        "read_bandwidth": reads,
        "summary": summary,
        "us": {  # median, least and most of the repeats
            named(case): {
                name: [float(f"{t * 1e6:.4g}") for t in (x.seconds, x.least, x.most)]
                for name, x in found.items()
            }
            for case, found in timings.items()
        },
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
