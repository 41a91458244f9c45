"""The picture of the invariant: one row of a real run, in two consecutive steps of the embedded
pair, with the tokens and the keys at each position.

`bass.testing`'s witness records which token the target read at each position of its cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import bass
from bass.api.options import RequestOptions
from bass.engine.step import SpeculativeStep
from bass.interfaces import ForwardingRowStore, RowStore, Scorer
from bass.policies import Fixed
from bass.records import Scored, Window
from bass.testing.watch import Witness
from support.pictures.svg import ASSETS, LETTER, MARGIN, PADDING, box, document, text, visible

FILE = ASSETS / "row.svg"
PROMPT = "def area(r):\n    return"
FIRST = 6  # the first position that is drawn
TRACKS = 52  # pixels for the names of the tracks
GAP, TRACK = 3, 27  # pixels between columns, and from track to track
RULES = (
    "rect.committed { fill: var(--panel); stroke: var(--line); stroke-width: 1.5; }",
    "rect.window { fill: var(--correction-soft); stroke: var(--correction); stroke-width: 2; }",
    "rect.stale { fill: var(--rejected-soft); stroke: var(--rejected); stroke-width: 1.5; "
    "stroke-dasharray: 4 2; }",
    "text.stale { text-decoration: line-through; }",
    "rect.none { fill: none; stroke: var(--faint); stroke-dasharray: 1 3; }",
    "text.position { fill: var(--faint); font-size: 11px; text-anchor: middle; }",
)
NAMES = tuple(f"{kind}{soft}" for kind in ("rejected", "correction") for soft in ("", "-soft"))


@final
@dataclass
class Recorder(ForwardingRowStore, Scorer):
    """Records, for each pass of the target over row 0: its window, and the keys before and after.

    A key is named by the token that was fed at its position, -1 for none.
    """

    witness: Witness
    passes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def store(self) -> RowStore:
        return self.witness

    def __call__(self, window: Window) -> Scored:
        before = self.witness.fed[0].tolist()
        scored = self.witness(window)
        length = int(self.witness.sequences.lens[0])
        self.passes.append(
            {
                "lens": length,
                "committed": self.witness.sequences.tokens[0, :length].tolist(),
                "window": window.tokens[0].tolist(),
                "positions": window.positions[0].tolist(),
                "before": before,
                "after": self.witness.fed[0].tolist(),
            }
        )
        return scored


def measured() -> list[dict[str, Any]]:
    """The first two passes of the target, tokens as texts, None for no key."""
    llm = bass.load(policy=Fixed(4), device="cpu", dtype="float32", max_batch_size=1)
    run = llm.start(PROMPT, RequestOptions(max_new_tokens=8, temperature=0)).run
    assert isinstance(run.step, SpeculativeStep)
    assert llm.models.tokenizer is not None
    recorder = Recorder(Witness(run.step.target, run.sequences, is_target=True))
    list(replace(run, step=replace(run.step, target=recorder)))
    pieces = llm.models.tokenizer.raw
    first, second = recorder.passes[:2]
    last = second["positions"][-1] + 1
    return [
        {
            "lens": one["lens"],
            "positions": one["positions"],
            **{name: [pieces([t]) for t in one[name]] for name in ("committed", "window")},
            **{
                name: [None if t < 0 else pieces([t]) for t in one[name][:last]]
                for name in ("before", "after")
            },
        }
        for one in (first, second)
    ]


Cell = tuple[int, str, str]  # position, text, kind
Panel = tuple[str, list[Cell], list[Cell]]  # title, tokens, keys


def panels(data: Any) -> list[Panel]:
    """What the picture shows: before the first step, its pass, after it, the second pass."""
    first, second = data
    k, end = len(first["window"]) - 1, second["positions"][-1] + 1
    accepted = second["lens"] - first["lens"] - 1
    return [
        (
            f"before the step: {first['lens']} committed tokens",
            _committed(first),
            _keys(first["before"], first["lens"], end),
        ),
        (
            f"the target's pass: the last token and {k} drafted",
            _window(first),
            _keys(first["after"], end, end, first["positions"]),
        ),
        (
            f"after it: {accepted} accepted, 1 correction, {second['lens']} committed",
            _committed(second),
            _keys(second["before"], second["lens"] - 1, end),
        ),
        (
            "the next pass overwrites the stale keys",
            _window(second),
            _keys(second["after"], end, end, second["positions"]),
        ),
    ]


def _committed(one: Any) -> list[Cell]:
    return [(p, token, "committed") for p, token in enumerate(one["committed"]) if p >= FIRST]


def _window(one: Any) -> list[Cell]:
    first = one["positions"][0]
    return [
        *(cell for cell in _committed(one) if cell[0] < first),
        *((p, t, "window") for p, t in zip(one["positions"], one["window"], strict=True)),
    ]


def _keys(keys: list[str | None], valid: int, end: int, window: tuple[int, ...] = ()) -> list[Cell]:
    """valid: the keys before this position are those of committed tokens or of the window."""
    return [
        (p, "", "none")
        if key is None
        else (p, key, "window" if p in window else "committed" if p < valid else "stale")
        for p, key in enumerate(keys[:end])
        if p >= FIRST
    ]


def drawn(data: Any) -> str:
    """The row as SVG."""
    shown = panels(data)
    widest: dict[int, int] = {}
    for _, *tracks in shown:
        for position, token, _kind in (cell for track in tracks for cell in track):
            widest[position] = max(widest.get(position, 2), len(visible(token)))
    left, x = {}, MARGIN + TRACKS
    for position in sorted(widest):
        left[position] = x
        x += widest[position] * LETTER + 2 * PADDING + GAP
    body, y = [*_legend()], 86
    for title, tokens, keys in shown:
        body.append(text(MARGIN, y, title, "step"))
        y += 19
        for position, at in left.items():
            middle = at + (widest[position] * LETTER + 2 * PADDING) / 2
            body.append(text(middle, y, str(position), "position"))
        for name, cells in (("tokens", tokens), ("keys", keys)):
            y += TRACK - (4 if name == "tokens" else 0)
            body.append(text(MARGIN, y, name, "note"))
            for position, token, kind in cells:
                body += _cell(left[position], y, widest[position], token, kind)
        y += 38
    first, second = data
    return document(
        "A row of the cache, before, in and after a step",
        f"Before the step {first['lens']} tokens are committed, and the last of them has no key. "
        f"The window feeds positions {first['positions'][0]} to {first['positions'][-1]}. "
        f"After it {second['lens']} tokens are committed; keys from position "
        f"{second['positions'][0]} on are stale. The next window starts there and overwrites them.",
        data,
        y - 16,
        body,
        RULES,
        NAMES,
    )


def _legend() -> Iterator[str]:
    meaning = (
        ("committed", "committed"),
        ("window", "in the window"),
        ("stale", "stale: never read"),
        ("none", "no key yet"),
    )
    for i, (kind, said) in enumerate(meaning):
        x, y = MARGIN + 204 * (i % 2), 28 + 25 * (i // 2)
        yield box(x, y, 22.0, kind)
        yield text(x + 28, y, said, "legend")


def _cell(x: float, y: float, letters: int, token: str, kind: str) -> Iterator[str]:
    shown = visible(token)
    width = letters * LETTER + 2 * PADDING
    yield box(x, y, width, kind)
    if shown:
        at = x + (width - len(shown) * LETTER) / 2
        yield text(at, y, shown, kind, len(shown))
