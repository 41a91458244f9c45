"""`bass list`: every named strategy, of bass and of installed packages, and every model family."""

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from rich.text import Text

from bass.api.kinds import KINDS
from bass.api.resolve import REQUIRED, distribution, offers, parameters, plugin_class, plugins
from bass.cli.options import Parser, console
from bass.errors import OptionError, unknown_name
from bass.own_modules import find_object
from bass.printable import printable

EXAMPLES = ("bass list", "bass list policy", "bass list my_policy:MyPolicy")
FAMILY = "family"
ABOUT = {kind.name: kind.about for kind in KINDS.values()}
ABOUT[FAMILY] = "models that can be loaded, by `model_type` of their config"


@dataclass(frozen=True)
class Listed:
    """A named class. path: its module and name. doc: its documentation. origin: the distribution
    that registers it, if not bass. problem: why it cannot be used by this name. found: the class.
    """

    kind: str
    name: str
    path: str
    doc: str = ""
    found: type | None = None
    origin: str = ""
    problem: str = ""

    @classmethod
    def of(cls, kind: str, name: str, found: type, about: Any = None, **more: str) -> "Listed":
        """Describe a class. about: what has its documentation, if not the class itself."""
        doc = inspect.cleandoc((about or found).__doc__ or "")  # `getdoc` takes the base class's
        own = {"path": f"{found.__module__}:{found.__qualname__}"} | more
        return cls(kind, name, **own, doc=doc, found=found)

    @classmethod
    def offered(cls, kind: str, point: EntryPoint) -> "Listed":
        """Describe a strategy of an installed package."""
        origin, taken = distribution(point), plugins(kind)[point.name] != point
        taken = taken or point.name in KINDS[kind].registry
        problem = f"another strategy has the name: write `{point.value}` for this one"
        try:
            found = plugin_class(kind, point)
        except Exception as error:  # importing code of another package may raise anything
            reason = " ".join(str(error).split())
            return cls(kind, point.name, point.value, origin=origin, problem=reason)
        more = {"path": point.value, "origin": origin, "problem": problem if taken else ""}
        return cls.of(kind, point.name, found, **more)

    def line(self) -> Text:
        """The first sentence of its documentation, with what a user has to know."""
        sentence = " ".join(self.doc.partition("\n\n")[0].split()).partition(". ")[0]
        lossless = "" if getattr(self.found, "lossless", True) else "NOT LOSSLESS: "
        origin = "; ".join(filter(None, (self.origin and f" from {self.origin}", self.problem)))
        return Text.assemble((lossless, "bold red"), printable(sentence), (origin, "yellow"))

    def described(self) -> str:
        """The whole documentation, and the parameters with their defaults."""
        known = self.kind != FAMILY and not KINDS[self.kind].as_class and self.found
        given = [
            f"  --{self.kind}.{name}" + ("" if one.default is REQUIRED else f" {one.default!r}")
            for name, one in (parameters(known) if known else {}).items()
        ]
        paper = getattr(self.found, "paper", "")
        title = f"{self.kind} {self.name} ({', '.join(filter(None, (self.path, paper)))})"
        options = ["parameters, with their defaults:", *given] if given else ["no parameters"]
        origin = filter(None, (self.origin and f"from {self.origin}", self.problem))
        return "\n".join([title, *origin, "", self.doc, "", *options, ""])


def entries(kind: str) -> list[Listed]:
    """The strategies of a kind: of bass, then of installed packages, usable or not."""
    if kind == FAMILY:
        from bass.models import FAMILIES
        from bass.models.multimodal import MULTIMODAL, Multimodal

        docs = {name: inspect.getmodule(one) for name, one in FAMILIES.items()}
        own = [Listed.of(kind, name, one, docs[name]) for name, one in FAMILIES.items()]
        return [*own, *(Listed.of(kind, name, Multimodal) for name in MULTIMODAL)]
    own = [Listed.of(kind, name, one) for name, one in KINDS[kind].registry.items()]
    return [*own, *(Listed.offered(kind, point) for point in offers(kind))]


def by_path(spec: str) -> Listed:
    """The class of a user's module by `module:Class`. Raises `OptionError`."""
    module, _, name = spec.partition(":")
    try:
        found = find_object(module, name)
    except Exception as error:  # the user's module may raise any error
        raise OptionError(f"Cannot load `{spec}` ({type(error).__name__}: {error}).") from error
    for kind in KINDS.values():
        if isinstance(found, type) and issubclass(found, kind.interface):
            return Listed.of(kind.name, name, found)
    raise OptionError(f"`{spec}` is no strategy: it subclasses no class of `bass.interfaces`.")


def run(argv: list[str]) -> int:
    """Print all kinds, or one, or the documentation of one strategy."""
    about = "Lists strategies and model families, or the parameters of one strategy."
    command = Parser("list", about, EXAMPLES, skip=("config",))
    text = "only this kind, or this strategy, also as module:Class"
    command.add_argument("name", nargs="?", type=str, help=text)
    config = command.read(argv)
    if ":" in (config.name or ""):
        print(printable(by_path(config.name).described(), keep="\n"))
        return 0
    all_entries = [one for kind in ABOUT for one in entries(kind)]
    chosen = [one for one in all_entries if config.name in (None, one.kind, one.name)]
    if not chosen and config.name not in ABOUT:
        raise unknown_name(
            "strategy", str(config.name), {*ABOUT, *(one.name for one in all_entries)}
        )
    out = console()
    if config.name not in (None, *ABOUT):
        print(printable("\n".join(one.described() for one in chosen), keep="\n"))
    else:
        for kind in dict.fromkeys(one.kind for one in chosen):
            out.print(f"{kind}: {ABOUT[kind]}", style="bold", markup=False)
            for one in (one for one in chosen if one.kind == kind):
                line = Text.assemble(f"  {one.name:17} ", one.line())
                out.print(line, overflow="ellipsis", no_wrap=True, soft_wrap=not out.is_terminal)
    return 0
