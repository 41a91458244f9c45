"""`bass list`: every named strategy, of bass and of installed packages, and every model family."""

import inspect
import json
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from rich.text import Text

from bass.api.kinds import KINDS
from bass.api.resolve import REQUIRED, distribution, offers, parameters, plugin_class, plugins
from bass.cli.options import console, parser
from bass.errors import unknown_name
from bass.models import FAMILIES
from bass.models.multimodal import MULTIMODAL, Multimodal
from bass.printable import printable

EXAMPLES = ("bass list", "bass list policy", "bass list lagged")
FAMILY = "family"
ABOUT = {kind.name: kind.about for kind in KINDS.values()}
ABOUT[FAMILY] = "models that can be loaded, by `model_type` of their config"


@dataclass(frozen=True)
class Listed:
    """A named class. doc: its docstring. parameters: defaults by name. origin: the distribution
    that registers it, if not bass. problem: why it cannot be used by this name.
    """

    kind: str
    name: str
    doc: str = ""
    path: str = ""
    paper: str = ""
    lossless: bool | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    problem: str = ""

    @classmethod
    def of(cls, kind: str, name: str, found: type, origin: str = "", problem: str = "") -> "Listed":
        """Describe a class."""
        module_doc = sys.modules[found.__module__].__doc__
        doc = module_doc if kind == FAMILY else found.__doc__  # `getdoc` takes the base class's
        known = {} if kind == FAMILY or KINDS[kind].as_class else parameters(found)
        return cls(
            kind,
            name,
            inspect.cleandoc(doc or ""),
            f"{found.__module__}:{found.__qualname__}",
            getattr(found, "paper", ""),
            getattr(found, "lossless", None) if kind == "verifier" else None,
            {name: one.default for name, one in known.items()},
            origin,
            problem,
        )

    @classmethod
    def offered(cls, kind: str, point: EntryPoint) -> "Listed":
        """Describe a strategy of an installed package."""
        origin, first = distribution(point), plugins(kind)[point.name]
        holder = "bass itself" if point.name in KINDS[kind].registry else distribution(first)
        taken = holder != origin or first.value != point.value
        problem = f"the name belongs to {holder}: write `{point.value}` for this one"
        try:
            found = plugin_class(kind, point)
        except Exception as error:  # importing code of another package may raise anything
            reason = " ".join(str(error).split())
            return cls(kind, point.name, path=point.value, origin=origin, problem=reason)
        return cls.of(kind, point.name, found, origin, problem if taken else "")

    def line(self) -> Text:
        """The first sentence of its documentation, with what a user has to know."""
        sentence = " ".join(self.doc.partition("\n\n")[0].split()).partition(". ")[0]
        lossless = "" if self.lossless is not False else "NOT LOSSLESS: "
        origin = "; ".join(filter(None, (self.origin and f" from {self.origin}", self.problem)))
        return Text.assemble((lossless, "bold red"), printable(sentence), (origin, "yellow"))

    def described(self) -> str:
        """The whole documentation, and the parameters with their defaults."""
        given = [
            f"  --{self.kind}.{name}" + ("" if default is REQUIRED else f" {default!r}")
            for name, default in self.parameters.items()
        ]
        title = f"{self.kind} {self.name} ({', '.join(filter(None, (self.path, self.paper)))})"
        options = ["parameters, with their defaults:", *given] if given else ["no parameters"]
        origin = filter(None, (self.origin and f"from {self.origin}", self.problem))
        return "\n".join([title, *origin, "", self.doc, "", *options, ""])


def entries(kind: str) -> list[Listed]:
    """The strategies of a kind: of bass, then of installed packages, usable or not."""
    if kind == FAMILY:
        families = {**FAMILIES, **dict.fromkeys(MULTIMODAL, Multimodal)}
        return [Listed.of(kind, name, found) for name, found in families.items()]
    own = [Listed.of(kind, name, found) for name, found in KINDS[kind].registry.items()]
    return own + [Listed.offered(kind, point) for point in offers(kind)]


def run(argv: list[str]) -> int:
    """Print all kinds, or one, or the documentation of one strategy."""
    about = "Lists strategies and model families, or the parameters of one strategy."
    command = parser("list", about, EXAMPLES, skip=("config",))
    command.add_argument("name", nargs="?", type=str, help="only this kind, or this strategy")
    command.add_argument("--json", action="store_true", help="print a JSON line per name")
    config = command.read(argv)
    all_entries = [one for kind in ABOUT for one in entries(kind)]
    chosen = [one for one in all_entries if config.name in (None, one.kind, one.name)]
    if not chosen and config.name not in ABOUT:
        raise unknown_name(
            "strategy", str(config.name), {*ABOUT, *(one.name for one in all_entries)}
        )
    out = console()
    if config.json:
        for one in chosen:
            given = [
                {"name": name} | ({} if default is REQUIRED else {"default": default})
                for name, default in one.parameters.items()
            ]
            print(json.dumps(vars(one) | {"parameters": given}, default=repr))
    elif config.name not in (None, *ABOUT):
        print(printable("\n".join(one.described() for one in chosen), keep="\n"))
    else:
        for kind in dict.fromkeys(one.kind for one in chosen):
            out.print(f"{kind}: {ABOUT[kind]}", style="bold", markup=False)
            for one in (one for one in chosen if one.kind == kind):
                line = Text.assemble(f"  {one.name:17} ", one.line())
                out.print(line, overflow="ellipsis", no_wrap=True, soft_wrap=not out.is_terminal)
    return 0
