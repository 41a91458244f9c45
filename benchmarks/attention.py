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
import time
from typing import Any

import command_line as cli
import torch
from attention_cases import (
    DTYPE,
    PAIRS,
    SKEW,
    TOLERANCE,
    Case,
    Timing,
    Timings,
    cases,
    copy_bandwidth,
    measure,
)
from provenance import commit
from rich.console import Console
from rich.table import Column, Table

from bass.attention import BACKENDS
from bass.engine.cost import measure_peaks

AIM = 0.7  # of the copy bandwidth, for `ragged` at this context and from this batch on
AIM_CONTEXT, AIM_BATCH = 2048, 8
SLACK = 1.03  # two times within this ratio are a tie


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
    parser = cli.Parser(__doc__)
    parser.add_argument("--pairs", nargs="+", default=["paper", "llama"], choices=PAIRS)
    parser.add_argument("--windows", nargs="+", type=cli.positive, default=[1, 8])
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument(
        "--contexts", nargs="+", type=cli.positive, default=[256, 512, 1024, 2048, 4096, 8192]
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
        type=cli.natural,
        default=256,
        help="least megabytes of keys and values in all layers together",
    )
    parser.add_argument("--repeats", type=cli.positive, default=5)
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--device", type=cli.device, default="cuda")
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


def measured(
    chosen: list[Case],
    arguments: argparse.Namespace,
    device: torch.device,
    bandwidth: float,
    console: Console,
) -> Timings:
    """Time the cases, and print each group's table."""
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
        console.print(rates(of_group, bandwidth))
        timings |= of_group
    return timings


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
    timings = measured(chosen, arguments, device, copies, console)
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
    record = {
        "benchmark": "attention",
        "commit": commit(),
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
    cli.run(main)
