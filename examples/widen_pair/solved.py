"""The share of samples that pass, problem by problem, of an evaluation folder.

python examples/widen_pair/solved.py runs/small-problems
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean


def main() -> None:
    """Print a line for each family, and the mean of each method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    paths = sorted(folder.glob("*/scores.jsonl"))
    if not paths:
        parser.error(f"`{folder}` has no scores: name an output of `bass eval`.")
    for path in paths:
        values: defaultdict[str, list[float]] = defaultdict(list)
        for line in path.read_text(encoding="utf-8").splitlines():
            score = json.loads(line)
            if "value" in score:
                values[score["task_id"]].append(score["value"])
        families: defaultdict[str, list[float]] = defaultdict(list)
        for name, scores in values.items():
            families[name.split("/")[0]].append(fmean(scores))
        print(f"{path.parent.name}: {fmean(map(fmean, values.values())):.3f}")
        for family, shares in families.items():
            print(f"  {family:16}", *(f"{share:.2f}" for share in shares))


if __name__ == "__main__":
    main()
