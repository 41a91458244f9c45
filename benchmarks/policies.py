"""How far is each draft-length policy from the best fixed length?

    python benchmarks/policies.py [--batches 1 4 16 64] [--acceptances 0.3 0.5 0.7 0.8 0.9 0.95]
        [--ratio C] [--seeds 3] [--recorded FILE]

A simulation, not a timing: acceptance is imposed, the cost model of `bass.policies.simulate`
(measured on one H200) gives the time of a step, and a policy sees step times with an error of 5 %.
With --ratio C a draft step costs C of a target step at every batch size. The figure is milliseconds
per token in steps 200 to 1000, in percent of that of the best fixed length, chosen in hindsight
from 0..16 on the same draws. `best of each step` bounds all policies, `oracle` those in tokens: it
drafts what will be accepted of each row. The last rows draft 8 tokens, of which a trim has some
verified: a step verifies that many, as in packed windows, while the time of a policy with a length
for each row is that of its longest. Prints the bound first, a table, and one JSON line last. The
same arguments give the same figures, except for the host's time per step (last column).

With --recorded FILE, which `recorded_calls.py` wrote, the acceptance is that of its texts, by
position, at each of its temperatures; the cost is still that of the model. A figure is of whole
calls, which end with their slowest row, times are without errors, and `best of each step` is the
`oracle` of `recorded_calls.py`, no strict bound.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import command_line as cli
import numpy as np
import torch
from acceptances import Bursty, Drifting, PerPosition, RowRates
from provenance import commit, config_of
from recorded_calls import NEW, groups_of, in_hindsight, runs_of, total
from rich.console import Console
from rich.table import Column, Table

from bass.engine.trimming import KEPT
from bass.interfaces import DraftLengthPolicy, DraftTrim
from bass.policies import POLICIES, Fixed, Oracle
from bass.policies.simulate import Acceptance, Constant, CostModel, simulate
from bass.records import Drafted, Feedback
from bass.trims import Survival, Threshold

WARM_UP, STEPS, NOISE, LONGEST = 200, 1000, 0.05, 16
VARIED: dict[str, Acceptance] = {  # with position, row or time
    "per position": PerPosition(), "per row": RowRates(), "drifting": Drifting(),
    "bursty": Bursty(),
}  # fmt: skip
TRIMMED = 8  # drafted tokens of each row under a trim
Cells = dict[str, dict[str, float]]  # by acceptance and batch
Host = dict[str, list[float]]  # seconds of a step on the host, by policy
Source = Callable[[int], tuple[dict[str, float], dict[str, float]]]  # see `simulated`
Counts = tuple[torch.Tensor, np.ndarray]


@final
@dataclass(frozen=True)
class Trimmed(DraftLengthPolicy[Counts]):
    """Drafts of `max_length` tokens, and the lengths that a trim has verified.

    The state: `tried` and `accepted` of `Drafted` [2, batch, slots], and which rows decode [batch].
    """

    trim: DraftTrim
    cost: CostModel
    max_length: int = TRIMMED

    def init(self, batch_size: int) -> Counts:
        return torch.zeros(2, batch_size, self.max_length), np.ones(batch_size, dtype=bool)

    def lengths(self, state: Counts) -> np.ndarray:
        counts, active = state
        drafted = torch.from_numpy(self.max_length * active)
        return self.trim(Drafted(drafted, *counts)).numpy().astype(np.int32)

    def update(self, state: Counts, feedback: Feedback) -> Counts:
        kept, accepted = torch.tensor(feedback.drafted), torch.tensor(feedback.accepted)
        judged = torch.minimum(torch.stack((accepted + 1, accepted)), kept)
        seen = torch.arange(self.max_length) < judged[..., None]
        return KEPT * (state[0] + seen), feedback.active

    def seconds(self, kept: np.ndarray) -> np.ndarray:
        """Of steps that verify these lengths, int [..., rows]."""
        rows, drafting = kept.shape[-1], self.max_length * self.cost.draft(kept.shape[-1])
        return (self.cost.target(rows, kept.mean(-1)) + drafting) / 1000


def methods(cost: CostModel, batch: int) -> dict[str, DraftLengthPolicy[Any]]:
    """No drafts, all policies without required arguments, and one length with trims."""
    none, whole = cost.target(batch, 0), cost.target(batch, TRIMMED)
    share = float((whole - none) / TRIMMED / (none + TRIMMED * cost.draft(batch)))
    trims = {
        "threshold": Threshold(),
        "survival, two": Survival(2.0),
        "survival by cost": Survival(TRIMMED, cost=share),
    }
    found: dict[str, DraftLengthPolicy[Any]] = {"plain": Fixed(0)}
    found |= {name: cls() for name, cls in POLICIES.items()}
    found[f"k={TRIMMED}"] = Fixed(TRIMMED)
    return found | {f"k={TRIMMED}, {name}": Trimmed(one, cost) for name, one in trims.items()}


def sources(arguments: argparse.Namespace, cost: CostModel, host: Host) -> dict[str, Source]:
    """The cells of each acceptance by batch: of a recorded file, or independent ones at these
    rates, and four kinds that vary.
    """
    if arguments.recorded is not None:
        texts = json.loads(arguments.recorded.read_text(encoding="utf-8"))["accepted"]
        found = {f"at temperature {t}": runs_of(np.array(equal)) for t, equal in texts.items()}
        return {name: partial(recorded, runs, cost) for name, runs in found.items()}
    kinds = {f"{a:g}": Constant(a) for a in arguments.acceptances} | VARIED
    fixed = cost, arguments.seeds, host
    return {name: partial(simulated, one, *fixed) for name, one in kinds.items()}


def simulated(
    acceptance: Acceptance, cost: CostModel, seeds: int, host: Host, batch: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Percent of the best length by policy, and the bounds. Adds to `host`."""
    found: dict[str, list[float]] = {}
    fixed, each = [], []
    for seed in range(seeds):
        would = acceptance.draw(np.random.default_rng(seed), STEPS, batch)
        for name, policy in {**methods(cost, batch), "oracle": Oracle(would, LONGEST)}.items():
            began = time.perf_counter()
            run = simulate(policy, acceptance, batch, cost, STEPS, NOISE, seed)
            host.setdefault(name, []).append((time.perf_counter() - began) / STEPS)
            if isinstance(policy, Trimmed):
                run = replace(run, milliseconds=1000 * policy.seconds(run.lengths))
            found.setdefault(name, []).append(100 * (1 + run.since(WARM_UP).regret(LONGEST)))
        fixed.append(run.since(WARM_UP).fixed(LONGEST))
        each.append(run.since(WARM_UP).best_of_each_step(LONGEST))
    mean = np.mean(fixed, axis=0)
    bounds = {
        "best k": int(mean.argmin()),
        "best": float(mean.min()),
        "plain": float(mean[0]),
        "best of each step": float(np.mean(each)),
    }
    return {name: float(np.mean(values)) for name, values in found.items()}, bounds


def recorded(
    runs: np.ndarray, cost: CostModel, batch: int
) -> tuple[dict[str, float], dict[str, float]]:
    """As `simulated`, of calls of recorded rows, without an oracle of each row."""
    policies, groups = methods(cost, batch), groups_of(runs, batch)
    longest = max(LONGEST, *(policy.max_length for policy in policies.values()))
    times = cost.step(batch, np.arange(longest + 1)) / 1000
    fixed = np.array([total(Fixed(k), groups, times)[0] for k in range(LONGEST + 1)])
    found = {}
    for name, policy in policies.items():
        time_of = policy.seconds if isinstance(policy, Trimmed) else None
        found[name] = 100 * float(total(policy, groups, times, time_of)[0] / fixed.min())
    bound = in_hindsight(groups, times[: LONGEST + 1], fixed.min())[0]
    per_token = 1000 / len(groups) / NEW  # milliseconds, by the seconds of all calls
    return found, {
        "best k": int(fixed.argmin()),
        "best": float(per_token * fixed.min()),
        "plain": float(per_token * fixed[0]),
        "best of each step": float(per_token * bound),
    }


def table_of(
    acceptance_name: str, batches: list[int], host: Host, relative: Cells, bounds: Cells
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
    for name in relative[f"{acceptance_name}, batch {batches[0]}"]:
        values = [relative[f"{acceptance_name}, batch {batch}"][name] for batch in batches]
        seconds = f"{1e6 * float(np.median(host[name])):.0f}" if name in host else ""
        table.add_row(name, *(f"{value:.1f}" for value in values), seconds)
    return table


def summarized(relative: Cells, cells: list[str]) -> Cells:
    """Mean and worst percent of the best, by policy, over these cells."""
    summary = {}
    for name in relative[cells[0]]:
        values = [relative[cell][name] for cell in cells]
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
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="of `recorded_calls.py`")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the simulations."""
    arguments = parse(argv)
    cost = CostModel() if arguments.ratio is None else CostModel.from_ratio(arguments.ratio)
    console = Console()

    over = f"steps {WARM_UP} to {STEPS}" if arguments.recorded is None else "whole calls"
    console.print(
        "Bound: ms per token of the best fixed length 0..16, chosen in hindsight, and of "
        f"autoregressive decoding; {over}."
    )
    for batch in arguments.batches:
        target, draft = float(cost.target(batch, 0)), cost.draft(batch)
        console.print(
            f"  batch {batch}: target step {target:.2f} ms, draft step {draft:.2f} ms (c = "
            f"{draft / target:.3f})"
        )

    host: Host = {}
    relative: Cells = {}
    bounds: Cells = {}
    for name, source in sources(arguments, cost, host).items():
        for batch in arguments.batches:
            cell = f"{name}, batch {batch}"
            relative[cell], bounds[cell] = source(batch)
        console.print(table_of(name, arguments.batches, host, relative, bounds))
    console.print("Over cells with a constant or recorded acceptance: mean and worst % of best")
    cells = [cell for cell in relative if cell.partition(",")[0] not in VARIED]
    summary = summarized(relative, cells)
    for name, of_name in summary.items():
        console.print(f"  {name:22} {of_name['mean']:7.1f} {of_name['worst']:7.1f}")
    record = {
        "benchmark": "policies",
        "commit": commit(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "config": config_of(arguments)
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
