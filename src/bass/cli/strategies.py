"""`bass list`: every registered strategy with its parameters, and every model family."""

import inspect
import sys
from dataclasses import MISSING, fields, is_dataclass

from jsonargparse import ArgumentParser

from bass.cli.parsing import parse
from bass.models import FAMILIES
from bass.registry import REGISTRIES


def run(parser: ArgumentParser, argv: list[str]) -> int:
    """Print one block per kind of strategy, then the families."""
    parse(parser, argv)
    print("\n\n".join(block(kind, registry) for kind, registry in REGISTRIES.items()))
    print("\nmodel families:")
    for name, family in FAMILIES.items():
        print(f"  {name:{max(map(len, FAMILIES))}}  {(sys.modules[family.__module__].__doc__ or '').splitlines()[0]}")
    return 0


def block(kind: str, registry: dict[str, type]) -> str:
    """The strategies of one kind, each with its parameters and the first line of its docstring."""
    width = max(map(len, registry), default=0)
    lines = [f"{kind}:"]
    for name, cls in registry.items():
        lines.append(f"  {name:{width}}  {(inspect.getdoc(cls) or '').splitlines()[0]}")
        if given := parameters(cls):
            lines.append(f"  {'':{width}}  {', '.join(given)}")
    return "\n".join(lines)


def parameters(cls: type) -> list[str]:
    """`name=default` of what a user may set. A field without a default is the engine's to give."""
    if not is_dataclass(cls):
        return []
    return [f"{f.name}={f.default!r}" for f in fields(cls) if f.init and f.default is not MISSING]
