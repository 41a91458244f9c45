"""The picture at the top of the README: the first steps of a real run of the embedded pair.

The run is greedy and in float32. Along it, the two most probable tokens differ by 0.008 or more in
log-probability, where this engine and transformers differ by 0.000004 at most. So rounding changes
no token.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import bass
from bass.analysis.frames import step_lines, steps_frame
from bass.analysis.metrics import Measurement
from bass.analysis.picture import LETTERS, picture
from bass.policies import RowAdaptive
from support.pictures.svg import (
    ASSETS,
    KINDS,
    LETTER,
    MARGIN,
    PADDING,
    WIDTH,
    box,
    document,
    text,
    visible,
)

FILE = ASSETS / "run.svg"
STEPS = 4
PROMPTS = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\n\ndef read(path):\n    with",
    "def mean(values):\n    return",
    "try:\n    import numpy as np\nexcept",
)
GAP, CONTEXT = 4, 14  # pixels between tokens; letters of a row's text before the step
TOP, ROW, STEP = 86, 25, 34  # pixels above the first step, of a row, between two steps
MEANING = (
    "drafted, accepted",
    "drafted, rejected",
    "the target's correction",
    "the target's bonus token",
)
RULES = (
    "rect.rejected { stroke-dasharray: 4 2; } text.rejected { text-decoration: line-through; }",
    "rect.correction, rect.bonus { stroke-width: 2.5; }",
)


class Row(NamedTuple):
    """A row in one step: the end of its text before the step, and for each token its outcome, a
    letter of `bass.analysis.picture`, and its text.
    """

    context: str
    kinds: str
    texts: list[str]


Run = list[list[Row]]  # [steps, rows]


def measured() -> Run:
    """The first steps of a batch: four prompts, each row with a draft length of its own."""
    policy = RowAdaptive(start=4, max_length=6)
    llm = bass.load(policy=policy, device="cpu", dtype="float32", max_batch_size=len(PROMPTS))
    result = llm.generate(list(PROMPTS), max_new_tokens=32, temperature=0)
    lines = step_lines(result.trace[:STEPS], repeat=0, call=0)
    data = picture("", Measurement(steps_frame(lines), result.to_pandas()))
    tokenizer = llm.models.tokenizer
    assert tokenizer is not None
    texts, emitted = [*PROMPTS], [0] * len(PROMPTS)
    found: Run = []
    for step in data["steps"]:
        rows = []
        for b, kinds in enumerate(step["kinds"]):
            own = data["requests"][b]["tokens"][emitted[b] : emitted[b] + step["emitted"][b]]
            tokens = step["tokens"][b] + own[step["accepted"][b] :]
            rows.append(Row(texts[b][-CONTEXT:], kinds, [tokenizer.decode([t]) for t in tokens]))
            emitted[b] += len(own)
            texts[b] += tokenizer.decode(own)
        found.append(rows)
    return found


def drawn(data: Any) -> str:
    """The run as SVG, in the colours of the report, light and dark."""
    steps: Run = [[Row(*row) for row in rows] for rows in data]
    height = TOP + len(steps) * STEP + sum(map(len, steps)) * ROW - 14
    y, body = TOP, list(_legend())
    for number, rows in enumerate(steps, 1):
        body.append(text(MARGIN, y, f"step {number}: {_counts(rows)}", "step"))
        for row in rows:
            y += ROW
            body += _row(row, y)
        y += STEP
    said = ". ".join(f"Step {i}: {_counts(rows)}" for i, rows in enumerate(steps, 1))
    return document(
        "A batch of four rows, step by step", f"{said}.", steps, height, body, rules=RULES
    )


def _counts(rows: list[Row]) -> str:
    kinds = "".join(row.kinds for row in rows)
    accepted, drafted = kinds.count("A"), sum(kinds.count(kind) for kind in "ARU")
    emitted = accepted + sum(kinds.count(kind) for kind in "CBP")
    return f"{drafted} drafted, {accepted} accepted, {emitted} emitted"


def _legend() -> Iterator[str]:
    for i, (kind, meaning) in enumerate(zip(KINDS, MEANING, strict=True)):
        x, y = MARGIN + WIDTH // 2 * (i // 2), 28 + ROW * (i % 2)
        yield box(x, y, 22.0, kind)
        yield text(x + 28, y, meaning, "legend")


def _row(row: Row, y: int) -> Iterator[str]:
    context = visible(row.context)[-CONTEXT:]
    start = MARGIN + CONTEXT * LETTER
    yield text(start - len(context) * LETTER, y, context, "context", len(context))
    x = start + 2 * GAP
    for letter, token in zip(row.kinds, row.texts, strict=True):
        shown = visible(token)
        width = len(shown) * LETTER + 2 * PADDING
        yield box(x, y, width, LETTERS[letter])
        yield text(x + PADDING, y, shown, LETTERS[letter], len(shown))
        x += width + GAP
    assert x <= WIDTH - MARGIN, f"{row} is wider than the picture"
