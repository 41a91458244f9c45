"""The prompts of cells: from the config, from a file, or built in."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bass.errors import OptionError
from bass.files import read_regular, read_text
from bass.plain_json import json_lines

PYTHON = [
    (
        'class Account:\n    """A bank account with an owner and a balance."""\n\n    def '
        "__init__(self, owner, balance=0):\n"
    ),
    'def read_lines(path):\n    """Return the lines of a text file, without their newlines."""\n',
    (
        'def group_by(items, key):\n    """Return a dictionary from key(item) to the list of items '
        'that have it."""\n'
    ),
    (
        'class Stack:\n    """A last-in first-out stack."""\n\n    def __init__(self):\n        '
        "self.items = []\n\n    def push(self, item):\n"
    ),
    'def is_prime(n):\n    """Return True if n is a prime number."""\n',
    (
        "import unittest\n\n\nclass TestSplit(unittest.TestCase):\n    def setUp(self):\n        "
        'self.text = "a b"\n\n    def test(self):\n'
    ),
    (
        'def merge(left, right):\n    """Merge two sorted lists into one sorted list."""\n    '
        "result "
        "= []\n"
    ),
    (
        'def parse_args(argv=None):\n    parser = argparse.ArgumentParser(description="Count the '
        'words of a file.")\n'
    ),
]
LARGEST_PROMPTS = 1 << 28  # bytes of a file
Prompt = str | list[int]
BUILT_IN = {"python": PYTHON}


def read_prompts(given: Any, most: int | None) -> list[Any]:
    """The prompts of a config's `prompts`, texts or lists of token ids, at most `most` of them.

    given: a list of texts or of lists of token ids, the name of a built-in list, or a file. A
    .jsonl file has a `prompt` or `token_ids` in each line (such as a HumanEval file); any other
    file is a single prompt.
    """
    prompts = BUILT_IN.get(given) or _file(given) if isinstance(given, str) else given
    if not (isinstance(prompts, list) and prompts and all(map(_is_prompt, prompts))):
        raise OptionError(
            f"`prompts: {given!r:.60}` holds no prompts: give a list of texts or of lists of token "
            f"ids, a file, or {', '.join(BUILT_IN)}."
        )
    return prompts[:most]


def occurrences(prompts: Sequence[Prompt]) -> list[int]:
    """For each prompt, the number of equal prompts before it."""
    seen: Counter[str | tuple[int, ...]] = Counter()
    before = []
    for key in map(_key, prompts):
        before.append(seen[key])
        seen[key] += 1
    return before


def numbers(prompts: Sequence[Prompt]) -> list[int]:
    """For each prompt, its number among the different ones, from 0."""
    seen: dict[str | tuple[int, ...], int] = {}
    return [seen.setdefault(_key(prompt), len(seen)) for prompt in prompts]


def _key(prompt: Prompt) -> str | tuple[int, ...]:
    return prompt if isinstance(prompt, str) else tuple(prompt)


def _is_prompt(one: Any) -> bool:
    ids = isinstance(one, list) and all(
        isinstance(token, int) and not isinstance(token, bool) for token in one
    )
    return bool(one) and (ids or isinstance(one, str))


def _file(name: str) -> list[Any]:
    try:
        if not name.endswith(".jsonl"):
            return [read_text(Path(name), LARGEST_PROMPTS)]
        return [
            _prompt(number, entry)
            for number, entry in json_lines(read_regular(Path(name), LARGEST_PROMPTS))
        ]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"`prompts: {name}` cannot be read ({reason}): give a text file, a .jsonl file of JSON "
            f"objects with a `prompt` or `token_ids`, one per line, or {', '.join(BUILT_IN)}."
        ) from error


def _prompt(number: int, entry: Any) -> Any:
    if not isinstance(entry, dict) or not {"token_ids", "prompt"} & entry.keys():
        raise ValueError(f"line {number} is not a JSON object with a `prompt` or `token_ids`")
    return entry["token_ids"] if "token_ids" in entry else entry["prompt"]
