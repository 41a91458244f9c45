"""The picture of the layouts: where the caches keep the same three rows, and which positions each
launch of attention reads.

Every position of every row is written into a real cache, with its row and position as its key, and
found again in the view that attention reads. Rows 0 and 1 are samples of one prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bass.caches import PaddedCache, PagedCache, SplitCache
from bass.interfaces import KVCache
from bass.records import AttentionRule, CacheBudget, DecoderShape, RowAssignment
from support.pictures.svg import ASSETS, MARGIN, document, text

FILE = ASSETS / "layouts.svg"
LENGTHS, PROMPT = (38, 27, 9), 20  # of the rows in positions; of the prompt of rows 0 and 1
CELL, TALL, LINE = 8.4, 16, 48  # pixels of a position; positions in a line
SHAPE = DecoderShape(8, 1, 1, 1, 64, (AttentionRule(1.0),))
RULES = (
    *(f"rect.row{i} {{ fill: var(--{c}); }}" for i, c in enumerate(("s0", "s2", "s3"))),
    "rect.free { fill: var(--panel); stroke: var(--line); stroke-width: 0.5; }",
    "rect.padding { fill: var(--rejected-soft); stroke: var(--rejected); stroke-dasharray: 4 2; }",
    "text.number { fill: var(--page); font: 600 11px system-ui, sans-serif; }",
)
NAMES = ("s0", "s2", "s3", "rejected", "rejected-soft")
Slot = list[list[int]]  # the (row, position) pairs that a slot of the storage holds; none: free


@dataclass(frozen=True)
class Launches:
    """A way to read a layout. `by_row`: a launch for each row. `padded`: up to the longest row."""

    name: str
    cache: type[KVCache[Any]]
    by_row: bool = False
    padded: bool = False


WAYS = (
    Launches("PAD: padded rows, one launch", PaddedCache, padded=True),
    Launches("SPLIT: rows in a pool, a launch for each", SplitCache, by_row=True),
    Launches("ragged: the same pool, one launch", SplitCache),
    Launches("paged: blocks of 16, one launch", PagedCache),
)


def measured() -> list[dict[str, Any]]:
    """For each way: its name, the slots of its storage, and what each launch reads."""
    return [
        {
            "name": way.name,
            "slots": stored(way.cache),
            "launches": launches(way),
        }
        for way in WAYS
    ]


def launches(way: Launches) -> list[list[int]]:
    """For each launch: the number of positions that it reads of each row."""
    read = [max(LENGTHS)] * len(LENGTHS) if way.padded else [*LENGTHS]
    if not way.by_row:
        return [read]
    return [[n if i == row else 0 for i, n in enumerate(read)] for row in range(len(read))]


def stored(kind: type[KVCache[Any]]) -> list[Slot]:
    """The (row, position) pairs of each slot, in the order of the storage."""
    lengths = np.array(LENGTHS)
    shared, groups = np.array([PROMPT, PROMPT, 0]), np.array([0, 0, 1])
    budget = CacheBudget(len(lengths), lengths, shared, groups)
    cache = kind.allocate(SHAPE, budget, torch.device("cpu"), torch.float64)
    assignment = RowAssignment(lengths, np.array([0, 0, 2]), np.array([0, PROMPT, 0]))
    cache.reserve(assignment)
    at = torch.arange(max(LENGTHS))
    positions = torch.where(at < torch.tensor(LENGTHS)[:, None], at, -1)
    marks = 1 + at + 100 * torch.arange(len(LENGTHS))[:, None]
    prompts = torch.where(at < PROMPT, positions, -1)
    prompts[1] = -1  # row 1 gets the prompt's keys by a copy
    _write(cache, marks, prompts)
    cache.copy_rows(assignment)
    _write(cache, marks, torch.where((at >= PROMPT) | (prompts >= 0), positions, -1))
    return _found(cache)


def _write(cache: KVCache[Any], marks: torch.Tensor, positions: torch.Tensor) -> None:
    values = marks.to(torch.float64)[..., None, None]
    cache.write(0, values, values, positions)


def _found(cache: KVCache[Any]) -> list[Slot]:
    """Read the marks back by the view's own addresses."""
    view, n = cache.view(0), max(LENGTHS)
    rows, at = torch.arange(len(LENGTHS))[:, None], torch.arange(n)
    if isinstance(cache, PaddedCache):
        slots, size = rows * view.k.shape[1] + at, view.k.shape[0] * view.k.shape[1]
    elif isinstance(cache, SplitCache):
        slots, size = view.starts[:, None] + at, len(view.k)
    else:
        block = view.k.shape[1]
        slots = view.table[rows, at // block] * block + at % block
        size = (len(view.k) - 1) * block
    keys = view.k.reshape(-1)
    found: list[Slot] = [[] for _ in range(size)]
    for row, length in enumerate(LENGTHS):
        for position in range(length):
            slot = int(slots[row, position])
            mark = int(keys[slot])
            assert (mark - 1) % 100 == position
            found[slot].append([row, position])
    return found


def drawn(data: Any) -> str:
    """The layouts as SVG."""
    body, said, y = [*_legend()], [], 110
    for way in data:
        slots, reads = way["slots"], [sum(launch) for launch in way["launches"]]
        body.append(text(MARGIN, y, way["name"], "step"))
        each = " + ".join(map(str, reads)) if len(reads) > 1 else str(reads[0])
        count = f"{len(reads)} launches read" if len(reads) > 1 else "1 launch reads"
        facts = f"{len(slots)} positions stored; {count} {each}"
        body.append(text(MARGIN, y + 16, facts, "note"))
        said.append(f"{way['name']}: {facts}")
        y += 26
        padded = len(slots) == max(LENGTHS) * len(LENGTHS)
        free = "padding" if padded else "free"
        wide, numbers = max(LENGTHS) if padded else LINE, _numbers(way["launches"])
        blocks = 16 if "blocks" in way["name"] else len(slots)
        for first in range(0, len(slots), wide):
            body += _cells(slots[first : first + wide], y, free, numbers, blocks)
            y += TALL + 4
        y += 24
    return document(
        "Three rows in four layouts",
        f"Rows of {', '.join(map(str, LENGTHS))} positions; the first two share a prompt of "
        f"{PROMPT}. {'. '.join(said)}.",
        data,
        y - 14,
        body,
        RULES,
        NAMES,
    )


def _numbers(launches: list[list[int]]) -> list[int]:
    """The number of the launch that reads each row."""
    rows = range(len(launches[0]))
    return [next(i for i, read in enumerate(launches, 1) if read[row]) for row in rows]


def _cells(slots: list[Slot], y: float, free: str, numbers: list[int], block: int) -> Iterator[str]:
    """Runs of slots that hold the same rows, as one box each, with the number of the launch."""
    first = 0
    for i in range(1, len(slots) + 1):
        here = [row for row, _ in slots[first]]
        if i < len(slots) and [row for row, _ in slots[i]] == here and i % block:
            continue
        x, width = MARGIN + first * CELL, (i - first) * CELL - 1
        yield _box(x, y, width, TALL, f"row{here[0]}" if here else free)
        if len(here) > 1:
            yield _box(x, y + TALL / 2, width, TALL / 2, f"row{here[1]}")
        if here:
            yield text(x + 4, y + 12, str(numbers[here[0]]), "number")
        first = i


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}"/>'


def _legend() -> Iterator[str]:
    for i, length in enumerate(LENGTHS):
        yield _box(MARGIN + i * 136, 16, 22, TALL, f"row{i}")
        yield text(MARGIN + 6 + i * 136, 28, "n", "number")
        yield text(MARGIN + 28 + i * 136, 28, f"row {i}: {length}", "legend")
    yield text(MARGIN, 52, "n: number of the launch that reads it", "legend")
    for i, (kind, said) in enumerate((("padding", "padding, read"), ("free", "unused, not read"))):
        yield _box(MARGIN + i * 136, 64, 22, TALL, kind)
        yield text(MARGIN + 28 + i * 136, 76, said, "legend")
