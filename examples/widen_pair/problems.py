"""Write the problems of `bass eval small` into a file, or others of their kind.

    python examples/widen_pair/problems.py --out .data/problems.jsonl

`bass eval FILE` reads it.
"""

import argparse
import json
from pathlib import Path

from bass.experiments.problems import small_problems


def main() -> None:
    """Write the file, one record a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-family", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.per_family < 1:
        parser.error("`--per-family` must be 1 or more.")
    lines = [json.dumps(one) + "\n" for one in small_problems(args.per_family, args.seed)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(lines), encoding="utf-8")
    print(f"{args.out}: {len(lines)} problems")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        raise SystemExit(str(error)) from error
