"""How far is each draft-length policy from the best fixed length?

    python benchmarks/policies.py [--batches 1 4 16 64] [--acceptances 0.3 0.5 0.7 0.8 0.9 0.95]
        [--ratio C] [--seeds 3]

A simulation, not a timing: acceptance is imposed, the cost model of `bass.policies.simulate`
(measured on one H200) gives the time of a step, and a policy sees step times with an error of 5 %.
With --ratio C a draft step costs C of a target step at every batch size. The figure is milliseconds
per token in steps 200 to 1000, in percent of that of the best fixed length, chosen in hindsight
from 0..16 on the same draws. `best of each step` bounds all policies, `oracle` those in tokens: it
drafts what will be accepted of each row. Prints the bound first, a table, and one JSON line last.
The same arguments give the same figures, except for the host's time per step (last column).
"""

import argparse
import json
import platform
import time
from typing import Any

import command_line as cli
import numpy as np
from acceptances import Bursty, Drifting, PerPosition, RowRates
from provenance import commit
from rich.console import Console
from rich.table import Column, Table

from bass.interfaces import DraftLengthPolicy
from bass.policies import POLICIES, Fixed, Oracle
from bass.policies.simulate import Acceptance, Constant, CostModel, simulate

WARM_UP, STEPS, NOISE, LONGEST = 200, 1000, 0.05, 16


def policies() -> dict[str, DraftLengthPolicy[Any]]:
    """All policies without required arguments, and autoregressive decoding."""
    return {"plain": Fixed(0), **{name: cls() for name, cls in POLICIES.items()}}


def acceptances(constant: list[float]) -> dict[str, Acceptance]:
    """Independent acceptance at each of these rates, and four kinds that vary with position, row or
    time.
    """
    others = {
        "per position": PerPosition(),
        "per row": RowRates(),
        "drifting": Drifting(),
        "bursty": Bursty(),
    }
    return {**{f"{a:g}": Constant(a) for a in constant}, **others}


Cells = dict[str, dict[str, float]]  # by acceptance and batch


def simulated(
    arguments: argparse.Namespace, cost: CostModel
) -> tuple[dict[str, list[float]], Cells, Cells]:
    """Seconds of the host by policy, percent of the best length by cell and policy, and each cell's
    bounds.
    """
    host: dict[str, list[float]] = {name: [] for name in (*policies(), "oracle")}
    relative: dict[str, dict[str, float]] = {}
    bounds: dict[str, dict[str, float]] = {}
    for acceptance_name, acceptance in acceptances(arguments.acceptances).items():
        for batch in arguments.batches:
            cell = f"{acceptance_name}, batch {batch}"
            found: dict[str, list[float]] = {name: [] for name in host}
            fixed, each = [], []
            for seed in range(arguments.seeds):
                would = acceptance.draw(np.random.default_rng(seed), STEPS, batch)
                for name, policy in {**policies(), "oracle": Oracle(would, LONGEST)}.items():
                    began = time.perf_counter()
                    run = simulate(policy, acceptance, batch, cost, STEPS, NOISE, seed)
                    host[name].append((time.perf_counter() - began) / STEPS)
                    found[name].append(100 * (1 + run.since(WARM_UP).regret(LONGEST)))
                fixed.append(run.since(WARM_UP).fixed(LONGEST))
                each.append(run.since(WARM_UP).best_of_each_step(LONGEST))
            mean = np.mean(fixed, axis=0)
            bounds[cell] = {
                "best k": int(mean.argmin()),
                "best": float(mean.min()),
                "plain": float(mean[0]),
                "best of each step": float(np.mean(each)),
            }
            relative[cell] = {name: float(np.mean(values)) for name, values in found.items()}
    return host, relative, bounds


def table_of(
    acceptance_name: str,
    batches: list[int],
    host: dict[str, list[float]],
    relative: Cells,
    bounds: Cells,
) -> Table:
    """The policies under one acceptance, by batch."""
    columns = [
        Column(text, no_wrap=True)
        for text in ("policy", *(f"b={batch}" for batch in batches), "host us")
    ]
    table = Table(*columns, title=f"acceptance {acceptance_name}, % of best")
    cells = [bounds[f"{acceptance_name}, batch {batch}"] for batch in batches]
    table.add_row("best k", *(str(c["best k"]) for c in cells), "")
    table.add_row("its ms/token", *(f"{c['best']:.2f}" for c in cells), "")
    ratios = (100 * c["best of each step"] / c["best"] for c in cells)
    table.add_row("best of each step", *(f"{ratio:.1f}" for ratio in ratios), "")
    for name in host:
        values = [relative[f"{acceptance_name}, batch {batch}"][name] for batch in batches]
        table.add_row(
            name,
            *(f"{value:.1f}" for value in values),
            f"{1e6 * float(np.median(host[name])):.0f}",
        )
    return table


def summarized(arguments: argparse.Namespace, relative: Cells, names: list[str]) -> Cells:
    """Mean and worst percent of the best, by policy, over the cells with a constant acceptance."""
    summary = {}
    for name in names:
        values = [
            relative[f"{a:g}, batch {batch}"][name]
            for a in arguments.acceptances
            for batch in arguments.batches
        ]
        summary[name] = {"mean": round(float(np.mean(values)), 2), "worst": round(max(values), 2)}
    return summary


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--batches", type=cli.positive, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument(
        "--acceptances", type=cli.number(0, 1), nargs="+", default=[0.3, 0.5, 0.7, 0.8, 0.9, 0.95]
    )
    parser.add_argument(
        "--ratio",
        type=cli.number(0),
        default=None,
        help="draft step over target step, instead of the measured costs",
    )
    parser.add_argument("--seeds", type=cli.positive, default=3)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the simulations."""
    arguments = parse(argv)
    cost = CostModel() if arguments.ratio is None else CostModel.from_ratio(arguments.ratio)
    console = Console()

    console.print(
        "Bound: ms per token of the best fixed length 0..16, chosen in hindsight, and of "
        "autoregressive decoding; steps 200 to 1000."
    )
    for batch in arguments.batches:
        target, draft = float(cost.target(batch, 0)), cost.draft(batch)
        console.print(
            f"  batch {batch}: target step {target:.2f} ms, draft step {draft:.2f} ms (c = "
            f"{draft / target:.3f})"
        )

    host, relative, bounds = simulated(arguments, cost)
    for acceptance_name in acceptances(arguments.acceptances):
        console.print(table_of(acceptance_name, arguments.batches, host, relative, bounds))
    console.print("Over all cells with a constant acceptance: mean and worst % of best")
    summary = summarized(arguments, relative, list(host))
    for name, of_name in summary.items():
        console.print(f"  {name:15} {of_name['mean']:7.1f} {of_name['worst']:7.1f}")
    record = {
        "benchmark": "policies",
        "commit": commit(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "config": vars(arguments)
        | {"steps": STEPS, "warm_up": WARM_UP, "noise": NOISE, "longest": LONGEST},
        "cost": vars(cost),
        "bounds": {
            cell: {key: round(value, 4) for key, value in bound.items()}
            for cell, bound in bounds.items()
        },
        "percent_of_best": {
            cell: {name: round(value, 2) for name, value in values.items()}
            for cell, values in relative.items()
        },
        "summary": summary,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    cli.run(main)
