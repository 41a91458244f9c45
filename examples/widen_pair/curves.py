"""Pass@First and Pass@All within time budgets, of evaluations of several batch sizes.

    python examples/widen_pair/curves.py runs/wide-problems-*

Each folder is an output of `bass eval`. Prints a Markdown table with a row for each batch size and
budget, in seconds from the end of the prefill. An evaluation may sample on one machine and be
judged on another: `--judge problems.jsonl`, the data set, first judges the samples without a score.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bass.analysis.evaluated import Evaluated, read_evaluation
from bass.analysis.scores import CLOCKS
from bass.errors import BassError, RequestError
from bass.evaluation.evaluate import Evaluation, score
from bass.evaluation.tasks import read_problems
from bass.runs.evaluation_folder import Folder, read_manifest
from bass.runs.own_files import holder, take_lock

METHODS = ("plain", "single", "batched")
BUDGETS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


def judge(path: Path, data: Path) -> None:
    """Judge the samples of a folder that have no score."""
    manifest = read_manifest(path)
    config, count = manifest["config"], manifest["problems"]  # fewer with `--limit`
    problems = read_problems("humaneval", data)[:count]
    evaluation = Evaluation(config["task"], problems, config["options"])
    if evaluation.fingerprint != config["problems"]:
        raise RequestError(
            f"`{path}` has samples of other problems than `{data}`: give the file that "
            "`bass eval --data` read."
        )
    with take_lock(path) as lock:
        folder = Folder(path, holder(lock))
        for method in METHODS:
            if drawn := folder.samples(method):
                done = [one for one in problems if one.task_id in drawn]
                part = Evaluation(config["task"], done, config["options"])
                score(part, method, drawn, folder, lambda stage, done, total: None)
                print(f"{path}, {method}: {len(done)} problems judged", file=sys.stderr)


def points(evaluated: Evaluated, budgets: Sequence[float]) -> list[dict[str, Any]]:
    """First, All and the finished samples of every method within each budget, as shares."""
    found: list[dict[str, Any]] = []
    for budget in budgets:
        by_method = {}
        for method, groups in evaluated.methods.items():
            first, best = evaluated.scores(method, budget, CLOCKS[0])
            drawn = [one.sample for group in groups for one in group]
            done = sum(one.finished and one.seconds(CLOCKS[0]) <= budget for one in drawn)
            by_method[method] = {
                "first": float(first.mean()),
                "all": float(best.mean()),
                "finished": done / len(drawn),
            }
        limit = budget if math.isfinite(budget) else None
        found.append({"batch": evaluated.samples, "budget": limit, "methods": by_method})
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The points in Markdown; a method that an evaluation lacks has dashes."""
    heads = ["batch", "seconds", *(f"{m}: {what}" for m in METHODS for what in ("First", "All"))]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        budget = "no limit" if row["budget"] is None else f"{row['budget']:g}"
        shares = (row["methods"].get(m, {}).get(what) for m in METHODS for what in ("first", "all"))
        cells = ("–" if share is None else f"{100 * share:.0f} %" for share in shares)
        lines.append(f"| {row['batch']} | {budget} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of all folders, the smallest batch first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--judge", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the shares there")
    args = parser.parse_args()
    if not all(0 < budget < math.inf for budget in args.budgets):
        parser.error("--budgets are seconds, each a positive number.")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json: `{args.json.parent}` is no folder.")
    try:
        for folder in args.folders:
            if args.judge:
                judge(folder, args.judge)
        read = sorted(map(read_evaluation, args.folders), key=lambda one: one.samples)
    except BassError as error:
        raise SystemExit(str(error)) from error
    rows = [one for each in read for one in points(each, [*args.budgets, math.inf])]
    if args.json:
        args.json.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    print(table(rows))
    for each in read:
        print(f"\nbatch {each.samples}: {each.count} of {each.problems} problems", end="")
        print("".join(f"; {note}" for note in each.notes))


if __name__ == "__main__":
    main()
