"""Small problems at the level of the embedded pair, which solves no problem of HumanEval.

A family in `families/` is a prompt, its solution, and `calls`: arguments of the function, or
expressions of `candidate`. Its other keys are lists of words, or names of lists in `words.toml`. A
problem has one word of each list in place of `$key`, and expects what the solution returns. The
files are the categories.
"""

import itertools
import random
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from string import Template
from typing import Any

PER_FAMILY, SEED = 2, 0  # of the task `small-problems`
WORDS = "words.toml"
CODE = ("prompt", "solution", "calls")


def small_problems(per_family: int = PER_FAMILY, seed: int = SEED) -> Iterator[dict[str, str]]:
    """`per_family` problems of each family, each with other words, as records of HumanEval's form:
    the same ones for a seed.
    """
    folder = files("bass.evaluation") / "families"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    lists = tomllib.loads(texts.pop(WORDS))
    for file in sorted(texts):
        for name, family in tomllib.loads(texts[file]).items():
            drawn = choices(family, lists)
            random.Random(f"{seed} {name}").shuffle(drawn)
            for number, words in enumerate(drawn[:per_family]):
                yield _record(f"{name}/{number}", file.removesuffix(".toml"), family, words)


def choices(family: dict[str, Any], lists: dict[str, list[str]]) -> list[dict[str, str]]:
    """Every choice of one word from each list of a family, without a word twice."""
    words = {
        key: lists.get(value, value) if isinstance(value, str) else value
        for key, value in family.items()
        if key not in CODE
    }
    chosen = (dict(zip(words, one, strict=True)) for one in itertools.product(*words.values()))
    return [one for one in chosen if len({*one.values()}) == len(one)]


def _record(
    name: str, category: str, family: dict[str, Any], words: dict[str, str]
) -> dict[str, str]:
    """One problem. It runs the family's solution, and the tests expect what that returns."""
    prompt, solution, *calls = (
        Template(text).substitute(words)
        for text in (family["prompt"], family["solution"], *family["calls"])
    )
    entry = re.findall(r"^(?:def|class) (\w+)", prompt, re.MULTILINE)[-1]
    names: dict[str, Any] = {}
    exec(prompt + solution, names)  # of this package
    names["candidate"] = names[entry]
    lines = ["def check(candidate):"]
    for call in calls:
        expression = call if "candidate" in call else f"candidate{call}"
        lines.append(f"    assert {expression} == {eval(expression, names)!r}")
    return {
        "task_id": name,
        "category": category,
        "prompt": prompt,
        "entry_point": entry,
        "canonical_solution": solution,
        "test": "\n".join(lines) + "\n",
    }
