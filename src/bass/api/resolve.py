"""Resolves a strategy from a name, "package.module:Class", a mapping, a class or an object."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from bass.api.options import KINDS, typed
from bass.errors import BassError, OptionError, flag, imported, letters, unknown_name
from bass.process import find_object

REQUIRED = inspect.Parameter.empty  # the default of a parameter that has none
# names of heads, as vLLM's `method` has them, and the drafter that runs them
ALSO_CALLED = {"drafter": {"eagle3": "eagle", "dflash": "block", "dspark": "block"}}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a strategy's class, with its annotation.

    kind: kind of strategy that it takes, if any. several: it takes a tuple or list of them.
    """

    default: Any
    hint: Any = Any
    kind: str | None = None
    several: bool = False


def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of installed packages in a group, by name; the first distribution wins."""
    return {point.name: point for point in reversed([*entry_points(group=group)])}


def distribution(point: EntryPoint) -> str:
    """Name and version of the distribution that provides an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else ""


def names(kind: str) -> list[str]:
    """Every name of a strategy of the kind."""
    return sorted({*KINDS[kind].registry, *plugins(KINDS[kind].group)})


def find_class(kind: str, spec: Any) -> type:
    """The class for a class, a registered name or one of `ALSO_CALLED`, an entry point
    or "package.module:Class".

    A registered name of `bass` takes precedence over entry points. Raises `OptionError`.
    """
    registry, words = KINDS[kind].registry, KINDS[kind].words
    if isinstance(spec, type):
        return _checked(kind, spec, f"`{spec.__name__}`")
    if not isinstance(spec, str):
        form = "a subclass" if KINDS[kind].as_class else "an object of a subclass"
        raise OptionError(
            f"`{kind}={spec!r}` is no {words}: give a name ({', '.join(names(kind))}), "
            "`package.module:Class`, "
            f"or {form} of `bass.interfaces.{KINDS[kind].interface.__name__}`."
        )
    if (name := ALSO_CALLED.get(kind, {}).get(letters(spec), spec)) in registry:
        return registry[name]
    if spec in (offered := plugins(KINDS[kind].group)):
        return plugin_class(kind, offered[spec])
    module, colon, name = spec.rpartition(":")
    file, suffix, _ = (module or name).partition(".py")
    if (suffix or not colon) and Path(f"{file}.py").is_file():
        own = f"{file.replace('/', '.')}:{name if colon else 'Class'}"
        raise OptionError(f"`{kind}={spec}` names a file: give its module and class, `{own}`.")
    if not colon:
        raise unknown_name(words, spec, names(kind))
    found = imported(f"{words} `{spec}`", lambda: find_object(module, name))
    return _checked(kind, found, f"`{spec}`")


def plugin_class(kind: str, point: EntryPoint) -> type:
    """The class that an installed package provides."""
    called = f"`{point.name}`, which {distribution(point)} offers as `{point.value}`"
    return _checked(kind, imported(f"{KINDS[kind].words} {called}", point.load), called)


def make(kind: str, spec: Any, where: str | None = None) -> Any:
    """The strategy for `spec`, or its class for a kind that is used as a class.

    spec: a name, "package.module:Class", a class, an object, or {"class_path": one of the first
    three, "init_args": {...}}. Arguments are converted to the annotated types, and may themselves
    be specs of strategies. where: what is being resolved, such as `policy.policy`, for messages.
    Raises `OptionError`.
    """
    where, given = where or kind, {}
    if isinstance(spec, Mapping):
        if not {"class_path"} <= {*spec} <= {"class_path", "init_args"}:
            raise OptionError(
                f"`{where}={dict(spec)!r}` has the wrong form: give `class_path`, a name, and "
                "`init_args`, a mapping."
            )
        spec, given = spec["class_path"], spec.get("init_args") or {}
    if isinstance(spec, KINDS[kind].interface) and not given and not KINDS[kind].as_class:
        _check_declared(kind, spec, f"`{type(spec).__name__}`")
        return spec
    strategy = find_class(kind, spec)
    if KINDS[kind].as_class:
        if given:
            raise unknown_parameter(kind, strategy, next(iter(given)), ())
        return strategy
    made = {
        name: _argument(kind, strategy, name, value, f"{where}.{name}")
        for name, value in given.items()
    }
    try:
        found = strategy(**made)
    except BassError:
        raise
    except Exception as error:  # of a user's class, or invalid arguments for a class of bass
        reason = str(error) or type(error).__name__
        raise OptionError(
            f"Cannot make {KINDS[kind].words} `{strategy.__name__}`: {reason}. It takes "
            f"{inspect.signature(strategy)}."
        ) from error
    _check_declared(kind, found, f"`{strategy.__name__}`")
    return found


def _argument(kind: str, strategy: type, name: str, value: Any, where: str) -> Any:
    """The converted value of a parameter of a strategy's class."""
    known, given = parameters(strategy), inspect.signature(strategy).parameters.values()
    if name not in known and all(one.kind is not one.VAR_KEYWORD for one in given):
        raise unknown_parameter(kind, strategy, name, known)
    one = known.get(name, Parameter(None))
    if one.kind is not None and value is not None:  # the class decides whether it may be None
        if one.several:
            each = value if isinstance(value, list | tuple) else [value]
            return tuple(make(one.kind, x, f"{where}.{i}") for i, x in enumerate(each))
        return make(one.kind, value, where)
    if one.kind is not None or not _is_data(value):  # a Python object is passed on unchanged
        return value
    return typed(f"{where}={value!r:.60}", value, one.hint)


def unknown_parameter(kind: str, strategy: type, name: str, known: Iterable[str]) -> OptionError:
    """The error for a parameter that the class does not have, with the strategies that have it."""
    registry, words = KINDS[kind].registry, KINDS[kind].words
    own = next((key for key, one in registry.items() if one is strategy), strategy.__name__)
    error = str(unknown_name(f"parameter of {words} `{own}`", name, known))
    if having := [key for key, one in registry.items() if name in parameters(one)]:
        error += (
            f" `{name}` is a parameter of {' and '.join(f'`{key}`' for key in having)}: name the "
            f"{words}, as with `{kind}: {having[0]}`, or `{flag(kind)} {having[0]}`."
        )
    return OptionError(error)


def parameters(strategy: type) -> dict[str, Parameter]:
    """The parameters of a class, by name."""
    factories: dict[str, Any] = {}
    if dataclasses.is_dataclass(strategy):
        factories = {
            f.name: f.default_factory
            for f in dataclasses.fields(strategy)
            if f.default_factory is not dataclasses.MISSING
        }
    try:
        hints = typing.get_type_hints(strategy.__init__)
    except Exception:  # annotations that cannot be resolved are ignored
        hints = {}
    found: dict[str, Parameter] = {}
    for name, one in inspect.signature(strategy).parameters.items():
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            made = name in factories and one.default is not REQUIRED
            default, hint = factories[name]() if made else one.default, hints.get(name, Any)
            found[name] = Parameter(default, hint, *(_strategy_in(hint) or (None, False)))
    return found


def _is_data(value: Any) -> bool:
    """Whether JSON can represent the value; other values are Python objects."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_data(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_data, value))
    return value is None or isinstance(value, str | int | float)


def _strategy_in(hint: Any) -> tuple[str, bool] | None:
    origin = typing.get_origin(hint) or hint
    for kind in KINDS.values():
        if isinstance(origin, type) and issubclass(origin, kind.interface):
            return kind.name, False
    found = [one for one in map(_strategy_in, typing.get_args(hint)) if one is not None]
    if found and origin in (typing.Union, types.UnionType):
        return found[0]
    return (found[0][0], True) if found and origin in (tuple, list, Sequence) else None


def _checked(kind: str, found: Any, called: str) -> type:
    interface = KINDS[kind].interface
    if not (isinstance(found, type) and issubclass(found, interface)):
        raise OptionError(
            f"{called} is no {KINDS[kind].words}: it must be a class that subclasses "
            f"`bass.interfaces.{interface.__name__}`."
        )
    _check_declared(kind, found, called)
    return found


def _check_declared(kind: str, found: Any, called: str) -> None:
    """Raise `OptionError` for a class attribute without a default that the class lacks."""
    for name, hint in inspect.get_annotations(KINDS[kind].interface).items():
        if typing.get_origin(hint) is typing.ClassVar and not hasattr(found, name):
            [wanted] = typing.get_args(hint)
            raise OptionError(
                f"The {KINDS[kind].words} {called} does not declare `{name}`: write "
                f"`{name}: ClassVar[{wanted.__name__}] = ...` in the class."
            )
