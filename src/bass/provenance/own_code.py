"""The modules with the code of a cell: those of its objects, and those that its config names."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from bass.api.kinds import KINDS
from bass.api.resolve import offers

_SIMPLE = (str, bytes, int, float, bool, type(None))
_OURS = {"auto", *(name for kind in KINDS.values() for name in kind.registry)}
_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*(:[\w.]+)?")


def modules_of(parts: Iterable[Any]) -> set[str]:
    """The modules of these objects and of their contents: of classes with their bases, of
    functions, and modules themselves.

    An object may be a class itself.
    """
    # keeps visited objects alive, so that no other object gets the same id
    seen: dict[int, Any] = {}
    return {module for part in parts for module in _modules(part, seen)}


def _modules(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(value, _SIMPLE) or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, ModuleType):
        yield value.__name__
        return
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__.partition(".")[0] in ("torch", "numpy"):
        return
    yield from (base.__module__ for base in kind.__mro__)
    if isinstance(value, type):
        return
    if isinstance(own := getattr(value, "__module__", None), str):  # of a function
        yield own
    for one in _held(value):
        yield from _modules(one, seen)


def _held(value: Any) -> Iterable[Any]:
    """The items of a collection, the contents of a function, or the attributes of an object."""
    match value:
        case Mapping():
            return (*value.keys(), *value.values())
        case list() | tuple() | set() | frozenset():
            return value
        case functools.partial():
            return (value.func, value.args, value.keywords)
        case MethodType():
            return (value.__self__, value.__func__)
        case FunctionType():
            held = value.__closure__ or ()
            return (*held, value.__defaults__, value.__kwdefaults__, value.__dict__)
        case CellType():
            names = ["cell_contents"]  # which may be empty
        case _:
            names = [f.name for f in dataclasses.fields(value)] if _is_dataclass(value) else []
            names += [name for base in type(value).__mro__ for name in _slots(base)]
            names += [*getattr(value, "__dict__", {})]
    return [_attribute(value, name) for name in names]


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value)


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [*slots]


def _attribute(value: Any, name: str) -> Any:
    """The value of an attribute; None without one."""
    try:
        return getattr(value, name, None)
    except ValueError:  # of an empty cell
        return None


def modules_named(specs: Iterable[Any]) -> set[str]:
    """The modules, existing or not, that strings in these settings may name:
    `package.module:Class`, `package.module.function`, or the name of an entry point.
    """
    offered: dict[str, set[str]] | None = None
    found = set[str]()
    for text in _strings(list(specs)):
        if not _PATH.fullmatch(text) or text in _OURS:
            continue
        if {".", ":"} & {*text}:
            found.add(text.partition(":")[0])
        else:
            offered = _offered() if offered is None else offered
            found |= offered.get(text, set())
    return found


def _offered() -> dict[str, set[str]]:
    """The modules of entry points of installed packages, by name."""
    found: dict[str, set[str]] = {}
    for kind in KINDS:
        for point in offers(kind):
            found.setdefault(point.name, set()).add(point.module)
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(one)
