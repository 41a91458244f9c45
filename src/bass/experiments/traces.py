"""Acceptance traces of runs, and their replay with other policies, without a model.

trace = trace_of(result)             # or trace_of(bass.open_run(FOLDER).measurement("cell"))
replay(trace, ["bass", {"class_path": "fixed", "init_args": {"k": 4}}])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd

from bass.analysis.metrics import CALL, Measurement, by_position
from bass.api.options import DEFAULT_POLICY
from bass.api.resolve import make
from bass.api.results import Result
from bass.errors import OptionError
from bass.experiments.grid import label_of
from bass.policies import Fixed, Oracle
from bass.policies.simulate import LONGEST, CostModel, RecordedAcceptance, Simulation, simulate

FEWEST = 30  # drafts that reached a position, below which the common rate stands for its own


@final
@dataclass(frozen=True)
class Trace:
    """What the drafts of a run had accepted, and the times of its steps.

    row_steps: one row per row step, request by request in the order of the run: `drafted`, `judged`
    (of these, up to the end of the text) and `accepted`. steps: `k`, the longest draft of a step,
    and its `milliseconds`, the host's included. batch: rows that decoded together.
    """

    batch: int
    row_steps: pd.DataFrame
    steps: pd.DataFrame

    @property
    def censored(self) -> pd.Series:
        """Whether a longer draft might have had more accepted, since no token was rejected."""
        return self.row_steps["accepted"] >= self.row_steps["judged"]

    @property
    def acceptance(self) -> RecordedAcceptance:
        """The row steps for `bass.policies.simulate`: censored ones are completed by the rate of
        each position, which counts the drafts that reached it, as in Kaplan and Meier's estimator.
        """
        found = by_position(self.row_steps)
        reached, accepted = found["reached_by_position"], self.row_steps["accepted"].to_numpy()
        tail = float(accepted.sum() / max(reached.sum(), 1))
        rates = found["acceptance_by_position"].where(reached >= FEWEST, tail).to_numpy()
        return RecordedAcceptance(accepted, self.censored.to_numpy(), rates, tail)


def trace_of(source: Result | Measurement) -> Trace:
    """The trace of a result, or of a cell. Raises `OptionError` if nothing was drafted."""
    measured = source.measurement if isinstance(source, Result) else source
    if not measured.counts.drafted:
        raise OptionError("Nothing was drafted, so that nothing is known of acceptance.")
    rows = measured.rows.sort_values([*CALL, "request", "step"], kind="stable")
    steps = measured.steps
    milliseconds = 1e3 * (steps["seconds"] + steps["host_seconds"])
    return Trace(
        int(steps["requests"].map(len).max()),
        rows[["drafted", "judged", "accepted"]].reset_index(drop=True),
        pd.DataFrame({"k": steps["k"], "milliseconds": milliseconds}).reset_index(drop=True),
    )


LEAST_STEPS = 5


def measured_cost(trace: Trace) -> CostModel:
    """Milliseconds of a step by its longest draft: a straight line through the recorded medians.

    It holds for the batch of the trace alone. A length of fewer than `LEAST_STEPS` steps is that of
    rows at their limit. Raises `OptionError` if all others drafted the same number of tokens, or
    longer ones took no longer.
    """
    groups = trace.steps.groupby("k")["milliseconds"]
    counts = groups.size()
    counts = counts[counts >= min(LEAST_STEPS, counts.max())]
    medians = groups.median()[counts.index]
    if len(medians) < 2:
        raise OptionError(
            f"All steps draft {counts.index[0]} tokens, which does not show what a drafted token "
            "costs: give `cost`, or a trace whose lengths vary."
        )
    lengths = medians.index.to_numpy(dtype=float)
    slope, start = np.polyfit(lengths, medians.to_numpy(), 1, w=np.sqrt(counts.to_numpy()))
    if start <= 0 or slope < 0:
        raise OptionError(
            f"The times of the steps do not grow with their lengths ({start:.3g} ms and "
            f"{slope:.3g} ms for each drafted token): measure on an idle machine, or give `cost`."
        )
    return CostModel(float(start), 0.0, 0.0, 0.0, float(slope), 0.0)


def replay(
    trace: Trace,
    policies: Sequence[Any] | Mapping[str, Any] = (DEFAULT_POLICY,),
    cost: CostModel | None = None,
    batch: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Each policy on the same row steps, after no drafts, the best fixed length and the oracle.

    policies: as `policy=` of `bass.load`, or by label. cost: of a step; None: `measured_cost`.
    batch: rows of the simulation; None: as recorded. seed: of what completes censored ones, and
    of the noise of the times that a policy sees. Columns, by policy: `tau` (tokens per row step),
    `ms_per_token`, `speedup` (over no drafts), `drafted` (per row step), and `regret`
    (`ms_per_token` over that of the best fixed length, minus 1). The oracle drafts what will be
    accepted: a bound for policies with a length per row.
    """
    cost, batch = cost or measured_cost(trace), batch or trace.batch
    acceptance = trace.acceptance

    def run(policy: Any) -> Simulation:
        return simulate(policy, acceptance, batch, cost, acceptance.steps(batch), seed=seed)

    none = run(Fixed(0))
    best = int(none.fixed(LONGEST).argmin())
    runs = {
        "no drafts": none,
        f"best fixed length, k={best}": run(Fixed(best)),
        "oracle": run(Oracle(none.would, LONGEST)),
    }
    if not isinstance(policies, Mapping):
        policies = {str(label_of(one)): one for one in policies}
    runs |= {label: run(make("policy", policy)) for label, policy in policies.items()}
    rows = {
        label: {
            "tau": one.tau,
            "ms_per_token": one.ms_per_token,
            "speedup": none.ms_per_token / one.ms_per_token,
            "drafted": one.mean_length,
            "regret": one.regret(LONGEST),
        }
        for label, one in runs.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")
