"""Reads the prompts that a config or a command names, and selects among them."""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.errors import OptionError, unknown_name
from bass.files import read_text
from bass.prompts.entries import KEYS, Entry, entry_of
from bass.prompts.files import (
    KINDS,
    UNREADABLE,
    check_form,
    form_of,
    is_records,
    numbered_records,
    reason,
)
from bass.prompts.published import SETS, PromptSet, with_groups

LARGEST_PROMPTS = 1 << 28  # bytes of a text


@final
@dataclass(frozen=True)
class Selection:
    """Which prompts of a file are used, in its order: of these categories, the first
    `per_category` of each, and of what is left the first `most`. None: all.
    """

    categories: tuple[str, ...] | None = None
    per_category: int | None = None
    most: int | None = None

    @classmethod
    def named(
        cls,
        categories: str | Sequence[str] | None,
        per_category: int | None = None,
        most: int | None = None,
    ) -> "Selection":
        """As options name it: one category may be without a list."""
        chosen = [categories] if isinstance(categories, str) else categories
        return cls(None if chosen is None else tuple(chosen), per_category, most)

    def of(self, entries: Sequence[Entry]) -> list[Entry]:
        """The selected entries. Raises `OptionError` for a category that none has, and for none."""
        if self.categories is not None and not self.categories:
            raise OptionError("`categories` is empty: name one or more, or leave it out.")
        known = list(dict.fromkeys(entry.category for entry in entries if entry.category))
        for name in self.categories or ():
            if name not in known:
                if not known:
                    raise OptionError(
                        f"`categories` names `{name}`, and the prompts have no categories: leave "
                        "it out."
                    )
                raise unknown_name("category", name, known)
        kept = [
            one for one in entries if self.categories is None or one.category in self.categories
        ]
        if self.per_category is not None:
            seen: Counter[str] = Counter()
            first = []
            for one in kept:
                seen[one.category] += 1
                if seen[one.category] <= self.per_category:
                    first.append(one)
            kept = first
        return kept[: self.most]


def read(name: str, data: str | None, own: Sequence[str] = ()) -> list[Entry]:
    """The entries of a published set by name, or of a file by path: of records, see
    `bass.prompts.files`, or one text. data: the folder of published files.

    own: names that the caller knows besides, for a message. Raises `OptionError`.
    """
    known = SETS.get(name)
    if known is None:
        check_form(Path(name))
    if known is None and not Path(name).exists() and "/" not in name and not Path(name).suffix:
        raise unknown_name("prompts", name, [*own, *SETS])
    path = Path(name) if known is None else known.path(data)
    try:
        if not is_records(path):
            return [Entry(_not_empty(read_text(path, LARGEST_PROMPTS)))]
        stat = path.stat()
        return list(_entries(path, known, (stat.st_ino, stat.st_size, stat.st_mtime_ns)))
    except UNREADABLE as error:
        where = name if known is None else f"{name} (`{path}`)"
        remedy = (
            f"give a text file, a file of JSON objects with {KEYS} ({KINDS}), or the name of a "
            f"set: {', '.join([*own, *SETS])}"
        )
        if path.is_file() and not isinstance(error, OSError):
            remedy = "mend the file, or give another"
        raise OptionError(
            f"`prompts: {where}` cannot be read ({reason(error)}): {remedy}."
        ) from error


@functools.lru_cache(maxsize=8)
def _entries(path: Path, known: PromptSet | None, _: tuple[int, ...]) -> tuple[Entry, ...]:
    """The entries of a file, read once while its size and time are the same."""
    found = []
    what = "line" if form_of(path) == ".jsonl" else "record"
    for number, record in numbered_records(path):
        if not isinstance(record, dict):
            raise ValueError(f"{what} {number} is not a JSON object with {KEYS}")
        try:
            found.append(with_groups(entry_of(record), known))
        except ValueError as error:
            raise ValueError(f"{what} {number}: {error}") from error
    if not found:
        raise ValueError("it has no prompts")
    return tuple(found)


def listed(given: Sequence[Any]) -> list[Entry]:
    """The entries of a list in a config. Raises `OptionError`."""
    try:
        return [entry_of(one) for one in given]
    except ValueError as error:
        raise OptionError(
            f"`prompts: {given!r:.60}` holds no prompts ({error}): give a list of texts, of lists "
            "of token ids, or of mappings as in a file of prompts."
        ) from error


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text
