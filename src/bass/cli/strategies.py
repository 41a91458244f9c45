"""`bass list`: every named strategy, of bass and of installed packages, and every model family."""

import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from bass.api.kinds import KINDS
from bass.api.resolve import (
    REQUIRED,
    distribution,
    offers,
    parameters,
    plugin_class,
    plugins,
)
from bass.cli.parsing import MAYBE, Option, Parser
from bass.cli.terminal import console, give, say
from bass.errors import unknown_name
from bass.models import FAMILIES
from bass.models.multimodal import MULTIMODAL, Multimodal

FAMILY = "family"
EXPLAINED = {kind.name: kind.about for kind in KINDS.values()} | {
    FAMILY: "models that can be loaded, by `model_type` of their config",
}
LOSSLESS = (
    "Policies, drafters and stop rules are lossless by their contract: with any of them the text "
    "follows the target's distribution. "
    "For a verifier it is shown next to its name."
)


@dataclass(frozen=True)
class Entry:
    """The row of one name.

    `origin`: the distribution that registers it, if not bass; `problem`: why it cannot be used.
    """

    kind: str
    name: str
    about: str = ""
    path: str = ""
    paper: str = ""
    lossless: bool | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    problem: str = ""

    @classmethod
    def of(
        cls, kind: str, name: str, strategy: type, origin: str = "", problem: str = ""
    ) -> "Entry":
        """The row of a class."""
        # the class's own docstring: `getdoc` would return its base class's
        about = summary(strategy.__doc__)
        lossless = getattr(strategy, "lossless", None) if kind == "verifier" else None
        paper = getattr(strategy, "paper", "")
        return cls(
            kind,
            name,
            about,
            path(strategy),
            paper,
            lossless,
            {}
            if KINDS[kind].as_class
            else {name: one.default for name, one in parameters(strategy).items()},
            origin,
            problem,
        )

    @property
    def cells(self) -> dict[str, str]:
        """The row's cells by column. A parameter without a default is required."""
        given = [
            name if default is REQUIRED else f"{name}={default!r}"
            for name, default in self.parameters.items()
        ]
        lossless = {True: "lossless", False: "NOT LOSSLESS", None: ""}[self.lossless]
        origin = self.origin and f"from {self.origin}"
        return {
            "name": self.name,
            "lossless": lossless,
            "parameters": ", ".join(given),
            "paper": self.paper,
            "origin": "; ".join(filter(None, (origin, self.problem))),
            "about": self.about,
        }

    @property
    def line(self) -> str:
        """JSON.

        The default of a required parameter is left out; one that JSON has no word for is written as
        Python writes it.
        """
        given = [
            {"name": n} if d is REQUIRED else {"name": n, "default": d}
            for n, d in self.parameters.items()
        ]
        return json.dumps(vars(self) | {"parameters": given}, default=repr)


def path(strategy: type) -> str:
    """The import path of a class."""
    return f"{strategy.__module__}:{strategy.__qualname__}"


def run(parser: Parser, argv: list[str]) -> int:
    """Print all kinds, or one."""
    parser.add(
        Option("kind", help=f"show only this kind: {', '.join(EXPLAINED)}", place=MAYBE),
        Option("json", bool, "one JSON line per name"),
    )
    config = parser.parse(argv)
    if config.kind is not None and config.kind not in EXPLAINED:
        raise unknown_name("kind", config.kind, EXPLAINED)
    kinds = {kind: entries(kind) for kind in (EXPLAINED if config.kind is None else [config.kind])}
    shown = console()
    if config.json:
        give("".join(f"{entry.line}\n" for listed in kinds.values() for entry in listed))
    elif shown.is_terminal:
        for kind, listed in kinds.items():
            shown.print(table(kind, listed))
        shown.print(LOSSLESS, style="dim", markup=False)
    else:
        say("\n\n".join([*(block(kind, listed) for kind, listed in kinds.items()), LOSSLESS]))
    return 0


def summary(doc: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())


def entries(kind: str) -> list[Entry]:
    """The strategies of one kind: of bass, then of installed packages, usable or not."""
    if kind == FAMILY:
        places: dict[str, type] = {**FAMILIES, **dict.fromkeys(MULTIMODAL, Multimodal)}
        return [
            Entry(kind, name, summary(sys.modules[place.__module__].__doc__), path(place))
            for name, place in places.items()
        ]
    ours = [Entry.of(kind, name, strategy) for name, strategy in KINDS[kind].registry.items()]
    return ours + [offered(kind, point) for point in offers(kind)]


def offered(kind: str, point: EntryPoint) -> Entry:
    """A strategy of an installed package, with its problem if it has one."""
    origin, first = distribution(point), plugins(kind)[point.name]
    holder = "bass itself" if point.name in KINDS[kind].registry else distribution(first)
    taken = holder != origin or first.value != point.value
    problem = f"the name belongs to {holder}: write `{point.value}` for this one" if taken else ""
    try:
        return Entry.of(kind, point.name, plugin_class(kind, point), origin, problem)
    except Exception as error:  # importing code of another package may raise anything
        return Entry(
            kind, point.name, path=point.value, origin=origin, problem=" ".join(str(error).split())
        )


def table(kind: str, listed: Sequence[Entry]) -> Table:
    """For a terminal: parameters below each strategy, so that 80 columns are enough."""
    shown = Table(
        title=f"{kind}: {EXPLAINED[kind]}",
        title_justify="left",
        title_style="bold cyan",
        box=box.SIMPLE_HEAD,
        show_header=False,
    )
    shown.add_column("name", style="bold", no_wrap=True)
    shown.add_column("about", ratio=1)
    shown.add_column("paper", style="dim", max_width=24)
    for entry in listed:
        styles = {
            "about": "",
            "parameters": "cyan",
            "lossless": "green" if entry.lossless else "bold red",
            "origin": "yellow",
        }
        lines = [
            Text(entry.cells[name], style=style)
            for name, style in styles.items()
            if entry.cells[name]
        ]
        shown.add_row(Text(entry.name), Text("\n").join(lines), Text(entry.paper))
    return shown


def block(kind: str, listed: Sequence[Entry]) -> str:
    """Plain text, one line for each name, without wrapping."""
    rows = [entry.cells for entry in listed]
    used = [name for name in (rows[0] if rows else {}) if any(row[name] for row in rows)]
    width = {name: max(len(row[name]) for row in rows) for name in used}
    lines = ["  ".join(row[name].ljust(width[name]) for name in used).rstrip() for row in rows]
    return "\n".join([f"{kind}: {EXPLAINED[kind]}", *(f"  {line}" for line in lines or ["none"])])
