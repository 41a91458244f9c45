"""Which options suit `make demo` on a CPU: how many samples, and how long a draft?

    python benchmarks/demo.py [--threads 2] [--rounds 9] [--seeds 3] [--batches 1 4 8 16] [--lengths
    2 3 4 bass]

Continues the prompt of `bass generate --example` with the embedded pair up to its stop strings, as
the demo does. For each number of samples, autoregressive decoding and every draft length run in
turn, in one process, after a warm-up of each. A length is a number for the policy `fixed`, or a
policy. Rounds cycle through the seeds.

A ratio compares with the autoregressive run of the same round, in tokens per second and in tokens
per second of processor time. The latter counts where other processes use the machine; then give
`--threads 1`, since waiting threads use processor time too. Prints the bound first, a table of
medians with the quartiles of the ratios, and one JSON line last.
"""

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command sets it, before torch is loaded

from typing import Any

import command_line as cli
import torch
from provenance import commit
from rich.console import Console
from rich.table import Table

import bass
from bass.cli.generate import EXAMPLE_STOPS
from bass.engine.cost import measure_peaks
from bass.experiments.prompts import PYTHON

PLAIN = "0"


@dataclass(frozen=True)
class Timed:
    """A run and its processor time in seconds."""

    stats: bass.Stats
    processor: float

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens per second, and per second of processor time."""
        return self.stats.tokens_per_second, self.stats.tokens / self.processor


def run(llm: bass.LLM, samples: int, new_tokens: int, seed: int) -> Timed:
    """Run the demo's request."""
    began = time.process_time()
    options = {"num_return_sequences": samples, "max_new_tokens": new_tokens, "stop": EXAMPLE_STOPS}
    stats = llm.generate(PYTHON[0], seed=seed, **options).stats
    return Timed(stats, time.process_time() - began)


def quartiles(values: list[float]) -> str:
    """The first and the third quartile, as text."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.2f} to {high:.2f}"


def measured(batch: int, arguments: argparse.Namespace) -> dict[str, list[Timed]]:
    """Each draft length's runs, in turn."""
    runs = {}
    for length in (PLAIN, *arguments.lengths):
        how = {"num_speculative_tokens": int(length)} if length.isdigit() else {"policy": length}
        runs[length] = bass.load(device="cpu", max_batch_size=batch, **how)
    found: dict[str, list[Timed]] = {length: [] for length in runs}
    for number in range(-1, arguments.rounds):  # the first is the warm-up
        for length, llm in runs.items():
            timed = run(llm, batch, arguments.new_tokens, max(number, 0) % arguments.seeds)
            found[length] += [timed] if number >= 0 else []
    return found


def compared(
    batch: int, length: str, own: list[Timed], plain: list[Timed]
) -> tuple[list[str], dict[str, Any]]:
    """A draft length's row of the table, and its part of the record."""
    ratios = [[a.rates[i] / b.rates[i] for a, b in zip(own, plain, strict=True)] for i in range(2)]
    columns = [
        text
        for values in ratios
        for text in (f"{statistics.median(values):.2f}x", quartiles(values))
    ]
    tau = statistics.mean(one.stats.tau for one in own)
    speed = statistics.median(one.rates[0] for one in own)
    row = [str(batch), length, f"{tau:.2f}", f"{speed:.0f}", *columns]
    rounded = [[round(ratio, 3) for ratio in values] for values in ratios]
    facts = {
        "samples": batch,
        "length": length,
        "tau": round(tau, 3),
        "ratios": rounded[0],
        "cpu_ratios": rounded[1],
    }
    return row, facts


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--threads", type=cli.threads, default=2)
    parser.add_argument("--rounds", type=cli.integer(2), default=9)
    parser.add_argument("--batches", type=cli.positive, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--lengths", nargs="+", default=["2", "3", "4", "bass"])
    parser.add_argument("--new-tokens", type=cli.positive, default=256)
    parser.add_argument("--seeds", type=cli.positive, default=3)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the comparison."""
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    console = Console(width=120)
    bandwidth = measure_peaks(torch.device("cpu"), torch.float32).bandwidth
    models = bass.load(device="cpu").models
    assert models.draft is not None
    target, draft = (
        sum(p.nbytes for p in model.parameters()) / bandwidth * 1e3
        for model in (models.target, models.draft)
    )
    console.print(
        f"Read bandwidth {bandwidth / 1e9:.1f} GB/s, {arguments.threads} threads; load "
        f"{os.getloadavg()[0]:.2f}. Bound by bytes:"
    )
    console.print(f"  an autoregressive step {target:.2f} ms, a drafted token {draft:.2f} ms")

    table = Table(
        "samples",
        "draft length",
        "tau",
        "tokens/s",
        "ratio",
        "quartiles",
        "by processor time",
        "quartiles",
    )
    record = []
    for batch in arguments.batches:
        found = measured(batch, arguments)
        for length, own in found.items():
            row, facts = compared(batch, length, own, found[PLAIN])
            table.add_row(*row)
            record.append(facts)
    console.print(table)
    about = {
        "benchmark": "demo",
        "commit": commit(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "load": os.getloadavg(),
    }
    print(json.dumps(about | {"config": vars(arguments), "runs": record}))


if __name__ == "__main__":
    cli.run(main)
