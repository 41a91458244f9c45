"""`bass list`: every named strategy, of bass and of installed packages, and every model family."""

import ast
import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

import bass
from bass.api.options import KINDS
from bass.api.resolve import ALSO_CALLED, REQUIRED, distribution, parameters, plugin_class, plugins
from bass.cli.options import Parser, console
from bass.errors import OptionError, imported, printable, unknown_name
from bass.process import find_object

EXAMPLES = ("bass list", "bass list policy", "bass list my_policy:MyPolicy")
FAMILY = "family"
ABOUT = {kind.name: kind.about for kind in KINDS.values()}
ABOUT[FAMILY] = "models that can be loaded, by `model_type` of their config"


@dataclass(frozen=True)
class Listed:
    """A named class. path: its module and name. doc: its documentation. origin: the distribution
    that registers it, if not bass. problem: why it cannot be used by this name.
    """

    kind: str
    name: str
    path: str
    doc: str = ""
    lossless: bool = True
    origin: str = ""
    problem: str = ""

    @classmethod
    def of(cls, kind: str, name: str, path: str, found: type, origin: str = "") -> "Listed":
        """Describe a class that is imported."""
        doc = inspect.cleandoc(found.__doc__ or "")  # `getdoc` takes the base class's
        return cls(kind, name, path, doc, getattr(found, "lossless", True), origin)

    def line(self) -> Text:
        """The first sentence of its documentation, with what a user has to know."""
        sentence = " ".join(self.doc.partition("\n\n")[0].split()).partition(". ")[0]
        lossless = "" if self.lossless else "NOT LOSSLESS: "
        origin = "; ".join(filter(None, (self.origin and f" from {self.origin}", self.problem)))
        also = [x for x, name in ALSO_CALLED.get(self.kind, {}).items() if name == self.name]
        sentence = f"({', '.join(also)}) {sentence}" if also else sentence
        return Text.assemble((lossless, "bold red"), printable(sentence), (origin, "yellow"))

    def described(self) -> str:
        """The whole documentation, and the parameters with their defaults."""
        found: Any = None
        with contextlib.suppress(Exception):  # `problem` has it
            found = find_object(*self.path.split(":"))
        given = []
        if found is not None and self.kind != FAMILY and not KINDS[self.kind].as_class:
            for name, one in parameters(found).items():
                default = "" if one.default is REQUIRED else f" {one.default!r}"
                given.append(f"  --{self.kind}.{name}{default}")
        paper = getattr(found, "paper", "")
        title = f"{self.kind} {self.name} ({', '.join(filter(None, (self.path, paper)))})"
        options = ["parameters, with their defaults:", *given] if given else ["no parameters"]
        origin = filter(None, (self.origin and f"from {self.origin}", self.problem))
        return "\n".join([title, *origin, "", self.doc, "", *options, ""])


def entries(kind: str) -> list[Listed]:
    """The classes of a kind: of bass, then of installed packages, usable or not."""
    group = "bass.families" if kind == FAMILY else KINDS[kind].group
    found = [*_own(kind, "bass.models" if kind == FAMILY else group)]
    if kind == FAMILY:
        outer = _parsed("bass.checkpoints.multimodal")
        doc, path = ast.get_docstring(outer) or "", "bass.checkpoints.multimodal:Multimodal"
        names = [ast.literal_eval(key) for key in _registry(outer).keys]
        found += (Listed(kind, name, path, doc) for name in names)
    for name, point in plugins(group).items():
        place = kind, name, point.value
        try:
            if kind == FAMILY:
                one = find_object("bass.checkpoints.families", "plugin_family")(point)
            else:
                one = plugin_class(kind, point)
            found.append(Listed.of(*place, one, distribution(point)))
        except Exception as error:  # importing code of another package may raise anything
            reason = " ".join(str(error).split())
            found.append(Listed(*place, origin=distribution(point), problem=reason))
    return found


def by_path(spec: str) -> Listed:
    """The class of a user's module by `module:Class`. Raises `OptionError`."""
    module, _, name = spec.partition(":")
    found = imported(f"`{spec}`", lambda: find_object(module, name))
    for kind in KINDS.values():
        if isinstance(found, type) and issubclass(found, kind.interface):
            return Listed.of(kind.name, name, spec, found)
    raise OptionError(f"`{spec}` is no strategy: it subclasses no class of `bass.interfaces`.")


def _own(kind: str, package: str) -> Iterator[Listed]:
    """The classes of bass, read from the sources: to import them loads torch, which takes seconds.

    The name of a family is in its config class.
    """
    tree = _parsed(package)
    table = [*ast.walk(_registry(tree))]
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    classes = [node.id for node in table if isinstance(node, ast.Name) and node.id in homes]
    names = [node.value for node in table if isinstance(node, ast.Constant)]
    for name, one in itertools.zip_longest(names, classes):
        module = _parsed(homes[one])
        named = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        found = named[one]
        if kind == FAMILY:
            [config] = re.findall(r"config_type = (\w+)", ast.unparse(found))
            [name] = re.findall(r"model_type = '(\w+)'", ast.unparse(named[config]))
        fields = [ast.unparse(node) for node in found.body if isinstance(node, ast.AnnAssign)]
        lossless = "lossless: ClassVar[bool] = False" not in fields
        doc = ast.get_docstring(module if kind == FAMILY else found) or ""
        yield Listed(kind, str(name), f"{homes[one]}:{one}", doc, lossless)


def _parsed(module: str) -> ast.Module:
    """The source of a module of bass."""
    path = Path(bass.__file__).parent.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _registry(tree: ast.Module) -> Any:
    """The first mapping of a module."""
    values = (node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    return next(value for value in values if isinstance(value, ast.Dict | ast.DictComp))


def run(argv: list[str]) -> int:
    """Print all kinds, or one, or the documentation of one strategy."""
    about = "Lists strategies and model families, or the parameters of one strategy."
    command = Parser("list [NAME]", about, EXAMPLES, skip=("config",))
    text = "only this kind, or this strategy, also as module:Class"
    command.add_argument("name", nargs="?", type=str, help=text)
    name, out = command.read(argv).name, console()
    name = ALSO_CALLED["drafter"].get(name, name)
    found = [one for kind in ABOUT for one in entries(kind)]
    if name is None or name in ABOUT:
        for kind in ABOUT if name is None else (name,):
            out.print(f"{kind}: {ABOUT[kind]}", style="bold")
            for one in (one for one in found if one.kind == kind):
                line = Text.assemble(f"  {one.name:17} ", one.line())
                out.print(line, overflow="ellipsis", no_wrap=True, soft_wrap=not out.is_terminal)
        return 0
    chosen = [by_path(name)] if ":" in name else [one for one in found if one.name == name]
    if not chosen:
        raise unknown_name("strategy", name, {*ABOUT, *(one.name for one in found)})
    print(printable("\n".join(one.described() for one in chosen), keep="\n"))
    return 0
