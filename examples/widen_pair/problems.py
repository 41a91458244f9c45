"""Write small problems at the level of the embedded pair, as a data set of `bass eval --task
humaneval`.

    python examples/widen_pair/problems.py --out .data/problems.jsonl

A family in `families/` is a prompt, its solution, and `calls`: arguments of the function, or
expressions of `candidate`. Its other keys are lists of words, or names of lists in `words.toml`. A
problem has one word of each list in place of `$key`, and expects what the solution returns.
"""

import argparse
import itertools
import json
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).parent / "families"
WORDS = FOLDER / "words.toml"
CODE = ("prompt", "solution", "calls")


def choices(family: dict[str, Any], lists: dict[str, list[str]]) -> list[dict[str, str]]:
    """Every choice of one word from each list of a family, without a word twice."""
    words = {
        key: lists.get(value, value) if isinstance(value, str) else value
        for key, value in family.items()
        if key not in CODE
    }
    chosen = (dict(zip(words, one, strict=True)) for one in itertools.product(*words.values()))
    return [one for one in chosen if len({*one.values()}) == len(one)]


def record(name: str, family: dict[str, Any], words: dict[str, str]) -> dict[str, str]:
    """One problem. It runs the family's solution, and the tests expect what that returns."""
    prompt, solution, *calls = (
        Template(text).substitute(words)
        for text in (family["prompt"], family["solution"], *family["calls"])
    )
    entry = re.findall(r"^(?:def|class) (\w+)", prompt, re.MULTILINE)[-1]
    names: dict[str, Any] = {}
    exec(prompt + solution, names)
    names["candidate"] = names[entry]
    lines = ["def check(candidate):"]
    for call in calls:
        expression = call if "candidate" in call else f"candidate{call}"
        lines.append(f"    assert {expression} == {eval(expression, names)!r}")
    return {
        "task_id": name,
        "prompt": prompt,
        "entry_point": entry,
        "canonical_solution": solution,
        "test": "\n".join(lines) + "\n",
    }


def problems(per_family: int, seed: int) -> Iterator[dict[str, str]]:
    """`per_family` problems of each family, each with other words."""
    lists = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    families: dict[str, Any] = {}
    for file in sorted({*FOLDER.glob("*.toml")} - {WORDS}):
        families |= tomllib.loads(file.read_text(encoding="utf-8"))
    for name, family in families.items():
        drawn = choices(family, lists)
        random.Random(f"{seed} {name}").shuffle(drawn)
        for number, words in enumerate(drawn[:per_family]):
            yield record(f"{name}/{number}", family, words)


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
    if args.out.is_dir():
        parser.error(f"`{args.out}` is a folder: name a file.")
    lines = [json.dumps(one) + "\n" for one in problems(args.per_family, args.seed)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(lines), encoding="utf-8")
    print(f"{args.out}: {len(lines)} problems")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        raise SystemExit(str(error)) from error
