"""The prompts of cells: from the config or a file, by the name of a published set, or built in."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from bass.errors import OptionError
from bass.prompts.entries import Entry
from bass.prompts.reading import Selection, listed, read

ALL = Selection()

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
BUILT_IN = {"python": PYTHON}


def read_prompts(given: Any, data: str | None = None, selection: Selection = ALL) -> list[Entry]:
    """The prompts of a config's `prompts`, in order, and of them those of the selection.

    given: a list of texts, of lists of token ids or of mappings as in a file; the name of a
    built-in list or of a published set, which is in the folder `data`; or a file. Raises
    `OptionError`.
    """
    if isinstance(given, str) and given in BUILT_IN:
        given = BUILT_IN[given]
    if isinstance(given, str) and given:
        found = read(given, data, [*BUILT_IN])
    elif isinstance(given, list) and given:
        found = listed(given)
    else:
        raise OptionError(
            f"`prompts: {given!r:.60}` holds no prompts: give a list of texts or of lists of token "
            f"ids, a file, {', '.join(BUILT_IN)}, or the name of a published set."
        )
    return selection.of(found)


def occurrences(prompts: Sequence[Hashable]) -> list[int]:
    """For each prompt, the number of equal prompts before it."""
    seen: Counter[Hashable] = Counter()
    before = []
    for key in map(_key, prompts):
        before.append(seen[key])
        seen[key] += 1
    return before


def numbers(prompts: Sequence[Hashable]) -> list[int]:
    """For each prompt, its number among the different ones, from 0."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(_key(prompt), len(seen)) for prompt in prompts]


def _key(prompt: Hashable) -> Hashable:
    return prompt.identity if isinstance(prompt, Entry) else prompt
