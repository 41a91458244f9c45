"""The colours of the page, read from its style sheet."""

import functools
import re
from importlib.resources import files

SERIES = tuple(f"s{i}" for i in range(8))
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
HATCHES = ("", "////", "\\\\\\\\", "xxxx")


def asset(name: str) -> str:
    """A file that belongs to the page."""
    return files("bass.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def colours(scheme: str = "light") -> dict[str, str]:
    """Name to #rrggbb, in the light or the dark scheme."""
    light, dark = re.findall(r":root \{([^}]*--page[^}]*)\}", asset("report.css"))
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))


def themed(svg: str) -> str:
    """An SVG with the page's variables instead of the light scheme's colours, so that it follows
    the reader's scheme.
    """
    names = {value: name for name, value in reversed(colours().items())}
    return re.sub(
        r"#[0-9a-f]{6}",
        lambda found: f"var(--{names[found[0]]})" if found[0] in names else found[0],
        svg,
    )
