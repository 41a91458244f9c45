"""What the pictures share: a document in the colours of the report, boxes, lines and texts.

A picture is a module with three names:

    FILE            its file
    measured()      its data, from a run of the project's own code; JSON can hold them
    drawn(data)     the SVG, which carries its data

It is the same byte for byte wherever it is drawn: no time is in it, and no token depends on
rounding.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from bass.analysis.plots import colours

ASSETS = Path(__file__).parents[3] / "docs/assets"
# in pixels; a phone's page is little narrower, so that texts stay readable there
WIDTH, MARGIN = 440, 16
LETTER, PADDING, HEIGHT = 7.2, 5, 20  # of a monospaced letter; of a box with a text
KINDS = ("accepted", "rejected", "correction", "bonus")
SURFACES = ("page", "panel", "ink", "faint", "line")


def document(
    title: str,
    description: str,
    data: Any,
    height: int,
    body: Iterable[str],
    rules: Iterable[str] = (),
    names: tuple[str, ...] = (*KINDS, *(f"{kind}-soft" for kind in KINDS)),
) -> str:
    """The SVG, on a page of its own, so that it is readable on light and dark pages.

    names: the colours that it uses, of the report's, as variables. rules: further rules of style.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<metadata>{escape(json.dumps(data, ensure_ascii=False))}</metadata>",
            f"<style>\n{_style(names, rules)}\n</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
            'rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def data_of(svg: str) -> Any:
    """The data that a picture shows."""
    found = ElementTree.fromstring(svg).findtext("{http://www.w3.org/2000/svg}metadata")
    assert found
    return json.loads(found)


def box(x: float, y: float, width: float, kind: str, height: float = HEIGHT) -> str:
    """A box for a text whose base line is at y."""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y - 14:g}" width="{width:.1f}" '
        f'height="{height:g}" rx="3"/>'
    )


def text(x: float, y: float, shown: str, kind: str, letters: int = 0) -> str:
    """A text, of a fixed width where it has a number of letters, whatever the font."""
    fixed = f' textLength="{letters * LETTER:.1f}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:g}"{fixed if letters else ""}>'
        f"{escape(shown)}</text>"
    )


def visible(shown: str) -> str:
    """Line ends and blanks as signs, long runs of blanks by their number."""
    if len(shown) > 4 and not shown.strip(" "):
        return f"·×{len(shown)}"
    return shown.replace("\n", "↵").replace(" ", "·")


def _style(names: tuple[str, ...], rules: Iterable[str]) -> str:
    used = (*SURFACES, *names)
    kinds = [name for name in names if f"{name}-soft" in names]
    return "\n".join(
        [
            f":root {{ {_variables('light', used)} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables('dark', used)} }} }}",
            'text { fill: var(--ink); font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans '
            'Mono", monospace; }',
            "text.step, text.legend, text.note { font: 12px system-ui, "
            '"DejaVu Sans", sans-serif; }',
            "text.step { font-weight: 600; } text.context, text.note { fill: var(--faint); }",
            "rect.page { fill: var(--page); stroke: var(--line); }",
            *(
                f"rect.{kind} {{ fill: var(--{kind}-soft); stroke: var(--{kind}); "
                "stroke-width: 1.5; }"
                for kind in kinds
            ),
            *rules,
        ]
    )


def _variables(scheme: str, names: tuple[str, ...]) -> str:
    chosen = colours("light") | colours(scheme)
    return " ".join(f"--{name}: {chosen[name]};" for name in names)
