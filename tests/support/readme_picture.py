"""The picture at the top of the README: the first steps of a real run of the embedded pair, which
`make picture` draws.

The run is greedy and in float32. Along it, the two most probable tokens differ by 0.008 or more in
log-probability, where this engine and transformers differ by 0.000004 at most. So rounding changes
no token, and the file is the same byte for byte. No time is in it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import bass
from bass.policies import RowAdaptive
from bass.report.palette import colours
from bass.report.picture import LETTERS, picture
from bass.runs.drafts import DraftLine
from bass.runs.records import RequestLine, StepLine

FILE = Path(__file__).parents[2] / "docs/assets/run.svg"
STEPS = 4
PROMPTS = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\n\ndef read(path):\n    with",
    "def mean(values):\n    return",
    "try:\n    import numpy as np\nexcept",
)
# in pixels: the picture's width and margins, a letter, a token's padding, gap and height
WIDTH, MARGIN, LETTER, PADDING, GAP, HEIGHT = 440, 16, 7.2, 5, 4, 20
CONTEXT = 14  # letters of a row's text before the step
TOP, ROW, STEP = 86, 25, 34  # pixels above the first step, of a row, between two steps
KINDS = ("accepted", "rejected", "correction", "bonus")
MEANING = (
    "drafted, accepted",
    "drafted, rejected",
    "the target's correction",
    "the target's bonus token",
)


class Row(NamedTuple):
    """A row in one step: the end of its text before the step, and for each token its outcome, a
    letter of `bass.report.picture`, and its text.
    """

    context: str
    kinds: str
    texts: list[str]


Run = list[list[Row]]  # [steps, rows]


def run() -> Run:
    """The first steps of a batch: four prompts, each row with a draft length of its own."""
    policy = RowAdaptive(start=4, max_length=6)
    llm = bass.load(policy=policy, device="cpu", dtype="float32", max_batch_size=len(PROMPTS))
    result = llm.generate(list(PROMPTS), max_new_tokens=32, temperature=0)
    steps = result.trace[:STEPS]
    data = picture(
        "",
        [StepLine.of(step, 0) for step in steps],
        [RequestLine.of(one, i, 0, 0, None, 0) for i, one in enumerate(result.completions)],
        {i: DraftLine.of(step, 0, i) for i, step in enumerate(steps)},
    )
    tokenizer = llm.models.tokenizer
    assert tokenizer is not None
    texts, emitted = [*PROMPTS], [0] * len(PROMPTS)
    found: Run = []
    for step in data["steps"]:
        rows = []
        for b, kinds in enumerate(step["kinds"]):
            own = data["requests"][b]["tokens"][emitted[b] : emitted[b] + step["emitted"][b]]
            tokens = step["tokens"][b] + own[step["accepted"][b] :]
            rows.append(Row(texts[b][-CONTEXT:], kinds, [tokenizer.raw([t]) for t in tokens]))
            emitted[b] += len(own)
            texts[b] += tokenizer.raw(own)
        found.append(rows)
    return found


def drawn(steps: Run) -> str:
    """The run as SVG, in the colours of the report, light and dark. Its data are within it."""
    height = TOP + len(steps) * STEP + sum(map(len, steps)) * ROW - 14
    y, body = TOP, list(_legend())
    for number, rows in enumerate(steps, 1):
        body.append(_text(MARGIN, y, f"step {number}: {_counts(rows)}", "step"))
        for row in rows:
            y += ROW
            body += _row(row, y)
        y += STEP
    said = ". ".join(f"Step {i}: {_counts(rows)}" for i, rows in enumerate(steps, 1))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">',
            '<title id="title">A batch of four rows, step by step</title>',
            f'<desc id="desc">{said}.</desc>',
            f"<metadata>{escape(json.dumps(steps, ensure_ascii=False))}</metadata>",
            f"<style>\n{_style()}\n</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
            'rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def data_of(svg: str) -> Run:
    """The run that a picture shows."""
    found = ElementTree.fromstring(svg).findtext("{http://www.w3.org/2000/svg}metadata")
    assert found
    return [[Row(*row) for row in rows] for rows in json.loads(found)]


def _counts(rows: list[Row]) -> str:
    kinds = "".join(row.kinds for row in rows)
    accepted, drafted = kinds.count("A"), sum(kinds.count(kind) for kind in "ARU")
    emitted = accepted + sum(kinds.count(kind) for kind in "CBP")
    return f"{drafted} drafted, {accepted} accepted, {emitted} emitted"


def _legend() -> Iterator[str]:
    for i, (kind, meaning) in enumerate(zip(KINDS, MEANING, strict=True)):
        x, y = MARGIN + WIDTH // 2 * (i // 2), 28 + ROW * (i % 2)
        yield _box(x, y, 22.0, kind)
        yield _text(x + 28, y, meaning, "legend")


def _row(row: Row, y: int) -> Iterator[str]:
    context = _visible(row.context)[-CONTEXT:]
    start = MARGIN + CONTEXT * LETTER
    yield _text(start - len(context) * LETTER, y, context, "context", len(context))
    x = start + 2 * GAP
    for letter, text in zip(row.kinds, row.texts, strict=True):
        shown = _visible(text)
        width = len(shown) * LETTER + 2 * PADDING
        yield _box(x, y, width, LETTERS[letter])
        yield _text(x + PADDING, y, shown, LETTERS[letter], len(shown))
        x += width + GAP
    assert x <= WIDTH - MARGIN, f"{row} is wider than the picture"


def _visible(text: str) -> str:
    """Line ends and blanks as signs, long runs of blanks by their number."""
    if len(text) > 4 and not text.strip(" "):
        return f"·×{len(text)}"
    return text.replace("\n", "↵").replace(" ", "·")


def _box(x: float, y: int, width: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y - 14}" width="{width:.1f}" height="{HEIGHT}" '
        'rx="3"/>'
    )


def _text(x: float, y: int, text: str, kind: str, letters: int = 0) -> str:
    """A text, of a fixed width where it has a number of letters, whatever the font."""
    fixed = f' textLength="{letters * LETTER:.1f}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y}"{fixed if letters else ""}>{escape(text)}</text>'
    )


def _style() -> str:
    names = ("page", "ink", "faint", "line", *KINDS, *(f"{kind}-soft" for kind in KINDS))
    rules = [
        f":root {{ {_variables('light', names)} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables('dark', names)} }} }}",
        'text { fill: var(--ink); font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", '
        "monospace; }",
        'text.step, text.legend { font: 12px system-ui, "DejaVu Sans", sans-serif; }',
        "text.step { font-weight: 600; } text.context { fill: var(--faint); }",
        "rect.page { fill: var(--page); stroke: var(--line); }",
        *(
            f"rect.{kind} {{ fill: var(--{kind}-soft); stroke: var(--{kind}); stroke-width: 1.5; }}"
            for kind in KINDS
        ),
        "rect.rejected { stroke-dasharray: 4 2; } text.rejected { text-decoration: line-through; }",
        "rect.correction, rect.bonus { stroke-width: 2.5; }",
    ]
    return "\n".join(rules)


def _variables(scheme: str, names: tuple[str, ...]) -> str:
    chosen = colours("light") | colours(scheme)
    return " ".join(f"--{name}: {chosen[name]};" for name in names)


if __name__ == "__main__":
    FILE.write_text(drawn(run()), encoding="utf-8")
    print(FILE)
