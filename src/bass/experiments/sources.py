"""The source of classes that are not ours: a hash of each file that they are made of, and the
versions of their packages.
"""

import ast
import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

_KNOWN = {"bass", "torch", "numpy", *sys.stdlib_module_names}  # the user's code is in none of them
_INSTALLED = {"site-packages", "dist-packages"}
_SIMPLE = (str, bytes, int, float, bool, type(None))


def classes(parts: Iterable[Any]) -> list[type]:
    """The classes of these objects and of all that they hold, with their bases.

    An object may be a class itself.
    """
    # which keeps alive what was visited, so that no other object has its id
    seen: dict[int, Any] = {}
    return list(
        dict.fromkeys(
            base for part in parts for kind in _classes(part, seen) for base in kind.__mro__
        )
    )


def _classes(value: Any, seen: dict[int, Any]) -> Iterator[type]:
    if isinstance(value, _SIMPLE) or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, type):
        yield value
        return
    yield type(value)
    for one in () if _top(type(value).__module__) in ("torch", "numpy") else _held(value):
        yield from _classes(one, seen)


def _held(value: Any) -> Iterable[Any]:
    """What is in a collection, or in the attributes of an object."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return {
        name: getattr(value, name, None) for name in (*names, *getattr(value, "__dict__", {}))
    }.values()


def source(module: str) -> dict[str, str]:
    """What a module of the user's is made of; nothing for one of ours, of torch's or of Python's.

    `module NAME` gives a hash of its file and of each file of the user's that it imports; `package
    NAME` gives the version of the installed distribution that it belongs to.
    """
    if _top(module) in _KNOWN:
        return {}
    found = {f"module {name}": hash_of(path) for name, path in _files(module)}
    for name in packages_distributions().get(_top(module), ()):
        try:
            found[f"package {name}"] = version(name)
        except PackageNotFoundError:  # half uninstalled
            continue
    return found


def _files(module: str) -> Iterator[tuple[str, Path]]:
    """The module's file, and those of all modules of the user's that it imports, directly or not.

    An installed one stands alone.
    """
    waiting, seen = [module], set[str]()
    while waiting:
        name = waiting.pop()
        found = sys.modules.get(name)
        if name in seen or found is None or _top(name) in _KNOWN:
            continue
        seen.add(name)
        path = Path(getattr(found, "__file__", None) or "")
        if not path.is_file():  # a namespace, or made by hand
            continue
        installed = bool(_INSTALLED & {*path.parts})
        if name == module or not installed:
            yield name, path
        if not installed:
            waiting += [name.rpartition(".")[0], *_imported(found, path)]


def _imported(module: ModuleType, path: Path) -> list[str]:
    """The names that a module's file may import."""
    try:
        tree = ast.parse(path.read_bytes())
    # no source, or edited since it was imported
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            try:
                base = importlib.util.resolve_name(relative, module.__package__ or "")
            except ImportError:  # it would not have been imported this way
                continue
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


def _top(module: str) -> str:
    return module.partition(".")[0]


def hash_of(path: Path) -> str:
    """Of a file's bytes; `unreadable` where there are none to be had."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return "unreadable"
