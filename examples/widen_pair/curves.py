"""Pass@First and Pass@All within time budgets, of evaluations of several batch sizes.

    python examples/widen_pair/curves.py runs/wide-problems-*

Each folder is an output of `bass eval`. Prints a Markdown table with a row for each batch size and
budget, in seconds from the end of the prefill.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bass.errors import BassError
from bass.experiments.pass_at_k import Evaluation

METHODS = ("plain", "single", "batched")
BUDGETS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


def shares(folders: Sequence[Path], budgets: Sequence[float]) -> pd.DataFrame:
    """One row per batch size and budget, the last of which is infinite; one column per method and
    score, such as ("plain", "pass_all").
    """
    found = []
    for evaluation in map(Evaluation, folders):
        curve = evaluation.curve([*budgets, math.inf], clock="decoded")
        found.append(curve.assign(batch=evaluation.manifest["config"]["num_return_sequences"]))
    wide = pd.concat(found).pivot(
        index=["batch", "seconds"], columns="method", values=["pass_first", "pass_all"]
    )
    columns = [(method, score) for method in METHODS for score in ("pass_first", "pass_all")]
    return wide.swaplevel(axis="columns").reindex(columns=pd.MultiIndex.from_tuples(columns))


def table(frame: pd.DataFrame) -> str:
    """The shares in Markdown; a method that an evaluation lacks has dashes."""
    names = {"pass_first": "First", "pass_all": "All"}
    heads = ["batch", "seconds", *(f"{method}: {names[score]}" for method, score in frame)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (batch, seconds), row in frame.iterrows():
        values = ("–" if math.isnan(share) else f"{100 * share:.0f} %" for share in row)
        budget = f"{seconds:g}" if math.isfinite(seconds) else "no limit"
        lines.append(f"| {batch} | {budget} | {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of all folders, the smallest batch first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the shares there")
    args = parser.parse_args()
    frame = shares(args.folders, args.budgets)
    if args.csv:
        frame.to_csv(args.csv)
    print(table(frame))


if __name__ == "__main__":
    try:
        main()
    except (BassError, OSError) as error:
        raise SystemExit(str(error)) from error
