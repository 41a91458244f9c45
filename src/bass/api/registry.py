"""From what a user writes (a name, "package.module:Class", an object) to an object of a
protocol.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.drafters import DRAFTERS
from bass.errors import BassError, OptionError, unknown_name
from bass.interfaces import (
    AttentionBackend,
    DraftLengthPolicy,
    DraftMethod,
    KVCache,
    Quantization,
    StopRule,
    Verifier,
)
from bass.models.quantized import QUANTIZATIONS
from bass.own_modules import find_object
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
    "quantization": QUANTIZATIONS,
}
PROTOCOLS: dict[str, type] = {
    "policy": DraftLengthPolicy,
    "stop_rule": StopRule,
    "drafter": DraftMethod,
    "verifier": Verifier,
    "cache": KVCache,
    "attention": AttentionBackend,
    "quantization": Quantization,
}

GROUPS = {
    "policy": "bass.policies",
    "stop_rule": "bass.stop_rules",
    "drafter": "bass.drafters",
    "verifier": "bass.verifiers",
    "cache": "bass.caches",
    "attention": "bass.attention",
    "quantization": "bass.quantizations",
}
# what a class must say of itself, with its kind and how to say it: of a bare annotation Python asks
# no value
SAID = {
    "verifier": {"lossless": (bool, "lossless: ClassVar[bool] = True` or `= False`")},
    "cache": {
        "view_type": (
            type,
            "view_type: ClassVar[type] = PaddedView` or the type that `view` gives instead",
        )
    },
    "attention": {
        "view_type": (
            type,
            "view_type: ClassVar[type] = PaddedView` or the type that `run` attends to instead",
        ),
        "capturable": (bool, "capturable: ClassVar[bool] = True` or `= False`"),
    },
}
IN_PYTHON = {  # classes of a kind that are no names, and why
    "policy": {
        "oracle": "`Oracle(trace)` of `bass.policies`, since it needs a recorded trace",
        "recorded": "`Recorded(policy, into)` of `bass.policies`, since it needs a list to fill",
    },
}
REQUIRED = inspect.Parameter.empty  # the default of a parameter that has none


def offers(kind: str) -> list[EntryPoint]:
    """What installed packages offer under the entry points `bass.policies`, `bass.stop_rules` and
    so on.
    """
    return list(entry_points(group=GROUPS[kind]))


def plugins(kind: str) -> dict[str, EntryPoint]:
    """The offers by name: of two with one name, that of the distribution found first."""
    return {point.name: point for point in reversed(offers(kind))}


def distribution(point: EntryPoint) -> str:
    """Name and version of the distribution that makes an offer."""
    return (
        "an unnamed distribution"
        if point.dist is None
        else f"{point.dist.name} {point.dist.version}"
    )


def names(kind: str) -> list[str]:
    """Every name that a strategy of the kind can be asked for by."""
    return sorted({*REGISTRIES[kind], *plugins(kind)})


def find_class(kind: str, spec: str) -> type:
    """The class that a registered name, an entry point, "package.module:Class" or
    "package.module.Class" stands for.

    A name of ours means ours, whatever installed packages call theirs.
    """
    if spec in REGISTRIES[kind]:
        return REGISTRIES[kind][spec]
    if spec in (offered := plugins(kind)):
        return plugin_class(kind, offered[spec])
    if spec in IN_PYTHON.get(kind, {}):
        raise OptionError(
            f"Unknown {words(kind)} `{spec}`: it can only be given as an object in Python, "
            f"{IN_PYTHON[kind][spec]}."
        )
    if ":" not in spec and "." not in spec:
        raise unknown_name(words(kind), spec, names(kind))
    module, _, name = spec.rpartition(":" if ":" in spec else ".")
    return _loaded(kind, f"`{spec}`", lambda: find_object(module, name))


def plugin_class(kind: str, point: EntryPoint) -> type:
    """The class that an installed package offers."""
    return _loaded(
        kind, f"`{point.name}`, which {distribution(point)} offers as `{point.value}`", point.load
    )


def unfold(kind: str, spec: Any) -> tuple[Any, dict[str, Any]]:
    """A name, class or object, and the arguments that come with it in {"class_path": ...,
    "init_args": {...}}.
    """
    if not isinstance(spec, Mapping):
        return spec, {}
    arguments = spec.get("init_args", {})
    if (
        not {"class_path"} <= {*spec} <= {"class_path", "init_args"}
        or not isinstance(arguments, Mapping)
        or not all(isinstance(name, str) for name in arguments)
    ):
        raise OptionError(
            f"`{kind}={dict(spec)!r}` is of another form: give `class_path`, a name, and "
            "`init_args`, a mapping."
        )
    return spec["class_path"], dict(arguments)


def make(kind: str, spec: Any, **arguments: Any) -> Any:
    """An object for `spec`; `arguments` go to the class that a name stands for.

    A spec may also be {"class_path": ..., "init_args": {...}}. Arguments that are strategies
    themselves, as those of a wrapper are, may be given in any of these ways.
    """
    spec, given = unfold(kind, spec)
    if PROTOCOLS[kind] in type(spec).__mro__ and not given and not arguments:
        _check_said(kind, spec, f"`{type(spec).__name__}`")
        return spec
    strategy = class_of(kind, spec)
    arguments = given | arguments
    known = parameters(strategy)
    for name in arguments:
        if name not in known and not takes_any(strategy):
            raise unknown_name(f"parameter of {words(kind)} `{strategy.__name__}`", name, known)
    inner = inner_kinds(strategy)
    for name in inner.keys() & arguments.keys():
        arguments[name] = _make_inner(strategy, inner[name], name, arguments[name])
    try:
        return strategy(**arguments)
    except BassError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of a user's class, or of arguments that do not fit ours
        told = str(error) or type(error).__name__
        raise OptionError(
            f"Cannot make {words(kind)} `{strategy.__name__}`: {told}. It takes "
            f"{inspect.signature(strategy)}."
        ) from error


def class_of(kind: str, spec: Any) -> type:
    """The class for a name or a class; anything else is refused."""
    if isinstance(spec, str):
        return find_class(kind, spec)
    if isinstance(spec, type):
        return _checked(kind, spec, f"`{spec.__name__}`")
    raise OptionError(
        f"`{kind}={spec!r}` is no {words(kind)}: give a name ({', '.join(names(kind))}), "
        "`package.module:Class`, "
        f"or an object of a subclass of `bass.interfaces.{PROTOCOLS[kind].__name__}`."
    )


def parameters(strategy: type) -> dict[str, Any]:
    """The default of each parameter of a class, by name; `REQUIRED` where it has none."""
    factories: dict[str, Any] = {}
    if dataclasses.is_dataclass(strategy):
        factories = {
            f.name: f.default_factory
            for f in dataclasses.fields(strategy)
            if f.default_factory is not dataclasses.MISSING
        }
    found = {}
    for name, parameter in inspect.signature(strategy).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            made = name in factories and parameter.default is not REQUIRED
            found[name] = factories[name]() if made else parameter.default
    return found


def takes_any(strategy: type) -> bool:
    """Whether the class takes arguments of any name."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(strategy).parameters.values())


def inner_kinds(strategy: type) -> dict[str, str]:
    """The parameters of a strategy's class that are strategies, or several, by the kind of each."""
    return {name: kind for name, (kind, _) in _inner(strategy).items()}


def takes_several(strategy: type, name: str) -> bool:
    """Whether the parameter, one of `inner_kinds`, is a tuple or list of strategies."""
    return _inner(strategy)[name][1]


def words(kind: str) -> str:
    """The kind, in a sentence."""
    return kind.replace("_", " ")


def _inner(strategy: type) -> dict[str, tuple[str, bool]]:
    """Kind, and whether several, of the parameters that are strategies."""
    try:
        hints = typing.get_type_hints(strategy.__init__)
    # annotations of a user's class that cannot be resolved: it has no such parameters then
    except Exception:
        return {}
    return {
        name: found for name, hint in hints.items() if (found := _strategy_in(hint)) is not None
    }


def _strategy_in(hint: Any) -> tuple[str, bool] | None:
    origin = typing.get_origin(hint) or hint
    for kind, protocol in PROTOCOLS.items():
        if isinstance(origin, type) and protocol in origin.__mro__:
            return kind, False
    found = [one for one in map(_strategy_in, typing.get_args(hint)) if one is not None]
    if found and origin in (typing.Union, types.UnionType):
        return found[0]
    return (found[0][0], True) if found and origin in (tuple, list, Sequence) else None


def _make_inner(strategy: type, kind: str, name: str, given: Any) -> Any:
    if given is None:  # the class knows whether it may be
        return None
    several = isinstance(given, list | tuple)
    if several != takes_several(strategy, name):
        wanted = "one, not several" if several else "several, as a list"
        raise OptionError(
            f"`{name}={given!r}` is of another form: the {words(kind)} of `{strategy.__name__}` is "
            f"{wanted}."
        )
    return tuple(make(kind, one) for one in given) if several else make(kind, given)


def _loaded(kind: str, called: str, load: Callable[[], Any]) -> type:
    try:
        found = load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is the user's: anything can happen in it
        raise OptionError(
            f"Cannot load {words(kind)} {called} ({type(error).__name__}: {error}): give an "
            "importable `package.module:Class`."
        ) from error
    return _checked(kind, found, called)


def _checked(kind: str, found: Any, called: str) -> type:
    protocol = PROTOCOLS[kind]
    if not (isinstance(found, type) and protocol in found.__mro__):
        raise OptionError(
            f"{called} is no {words(kind)}: it must be a class that subclasses "
            f"`bass.interfaces.{protocol.__name__}`."
        )
    _check_said(kind, found, called)
    return found


def _check_said(kind: str, found: Any, called: str) -> None:
    """Refuse a class, or an object of one, that leaves out what its protocol declares without a
    value.
    """
    for name, (wanted, form) in SAID.get(kind, {}).items():
        value = getattr(found, name, REQUIRED)
        if value is REQUIRED or not isinstance(value, wanted):
            true = (
                f"does not say its `{name}`"
                if value is REQUIRED
                else f"has `{name} = {value!r}`, which is no {wanted.__name__}"
            )
            raise OptionError(f"The {words(kind)} {called} {true}: write `{form} into the class.")
