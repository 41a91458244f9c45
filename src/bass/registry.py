"""From what a user writes (a name, "package.module:Class", an object) to an object of a protocol."""

import importlib
import inspect
import typing
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.drafters import DRAFTERS
from bass.errors import BassError, OptionError, unknown_name
from bass.interfaces import AttentionBackend, DraftLengthPolicy, DraftMethod, KVCache, StopRule, Verifier
from bass.policies import POLICIES
from bass.stop_rules import STOP_RULES
from bass.verifiers import VERIFIERS

REGISTRIES: dict[str, dict[str, type]] = {
    "policy": POLICIES,
    "stop_rule": STOP_RULES,
    "drafter": DRAFTERS,
    "verifier": VERIFIERS,
    "cache": CACHES,
    "attention": BACKENDS,
}
PROTOCOLS: dict[str, type] = {
    "policy": DraftLengthPolicy,
    "stop_rule": StopRule,
    "drafter": DraftMethod,
    "verifier": Verifier,
    "cache": KVCache,
    "attention": AttentionBackend,
}

GROUPS = {
    "policy": "bass.policies",
    "stop_rule": "bass.stop_rules",
    "drafter": "bass.drafters",
    "verifier": "bass.verifiers",
    "cache": "bass.caches",
    "attention": "bass.attention",
}


def plugins(kind: str) -> dict[str, EntryPoint]:
    """What installed packages offer under the entry points `bass.policies`, `bass.stop_rules` and so on, by name."""
    return {point.name: point for point in entry_points(group=GROUPS[kind])}


def names(kind: str) -> list[str]:
    """Every name that a strategy of the kind can be asked for by."""
    return sorted({*REGISTRIES[kind], *plugins(kind)})


def find_class(kind: str, spec: str) -> type:
    """The class that a registered name, an entry point or "package.module:Class" stands for."""
    registry = REGISTRIES[kind]
    if spec in registry:
        return registry[spec]
    offered = plugins(kind)
    if spec not in offered and ":" not in spec:
        raise unknown_name(words(kind), spec, names(kind))
    path = offered[spec].value if spec in offered else spec
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is the user's: anything can happen in it
        raise OptionError(
            f"Cannot load {words(kind)} `{spec}` ({type(error).__name__}: {error}): give an importable `package.module:Class`."
        ) from error
    return _checked(kind, found, spec)


def make(kind: str, spec: Any, **arguments: Any) -> Any:
    """An object for `spec`; `arguments` go to the class that a name stands for.

    A spec may also be {"class_path": ..., "init_args": {...}}. Arguments that are strategies themselves, as those of a wrapper
    are, may be given in any of these ways.
    """
    if isinstance(spec, Mapping):
        if not {"class_path"} <= {*spec} <= {"class_path", "init_args"} or not isinstance(spec.get("init_args", {}), Mapping):
            raise OptionError(f"`{kind}={dict(spec)!r}` is of another form: give `class_path`, a name, and `init_args`, a mapping.")
        spec, arguments = spec["class_path"], {**spec.get("init_args", {}), **arguments}
    if isinstance(spec, str):
        spec = find_class(kind, spec)
    elif isinstance(spec, type):
        spec = _checked(kind, spec, spec.__name__)
    elif PROTOCOLS[kind] in type(spec).__mro__:
        return spec
    else:
        raise OptionError(
            f"`{kind}={spec!r}` is no {words(kind)}: give a name ({', '.join(names(kind))}), `package.module:Class`, "
            f"or an object of a subclass of `bass.interfaces.{PROTOCOLS[kind].__name__}`."
        )
    inner = inner_kinds(spec)
    for name in inner.keys() & arguments.keys():
        given = arguments[name]
        several = isinstance(given, list | tuple)
        arguments[name] = tuple(make(inner[name], one) for one in given) if several else make(inner[name], given)
    try:
        return spec(**arguments)
    except BassError:
        raise
    except Exception as error:  # of a user's class, or of arguments that do not fit ours
        raise OptionError(f"Cannot make {words(kind)} `{spec.__name__}`: {error}. It takes {inspect.signature(spec)}.") from error


def inner_kinds(strategy: type) -> dict[str, str]:
    """The parameters of a strategy's class that are strategies, or several, by the kind of each."""
    try:
        hints = typing.get_type_hints(strategy.__init__)
    except Exception:  # annotations of a user's class that cannot be resolved: it has no such parameters then
        return {}
    found = {}
    for name, hint in hints.items():
        mentioned = {typing.get_origin(h) or h for h in (hint, *typing.get_args(hint))}
        for kind, protocol in PROTOCOLS.items():
            if protocol in mentioned:
                found[name] = kind
    return found


def words(kind: str) -> str:
    """The kind, in a sentence."""
    return kind.replace("_", " ")


def _checked(kind: str, found: Any, spec: str) -> type:
    protocol = PROTOCOLS[kind]
    if not (isinstance(found, type) and protocol in found.__mro__):
        raise OptionError(f"`{spec}` is no {words(kind)}: it must be a class that subclasses `bass.interfaces.{protocol.__name__}`.")
    return found
