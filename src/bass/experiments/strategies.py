"""Strategies as JSON and YAML say them, made into objects, with every parameter's type checked by
jsonargparse.
"""

import functools
import re
from argparse import ArgumentError
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentParser

from bass.api.registry import (
    REGISTRIES,
    class_of,
    inner_kinds,
    make,
    parameters,
    takes_any,
    takes_several,
    unfold,
)
from bass.errors import BassError, OptionError, unknown_name

# of each setting that names a strategy
KIND = {kind: kind for kind in REGISTRIES} | {"draft_quantization": "quantization"}
NOTHING = (None, "auto")  # where no strategy is named


def built(key: str, spec: Any) -> Any:
    """The object for the setting `key`, a cache's class, or `spec` itself where it names nothing.

    spec: a name, "package.module:Class", or {"class_path": ..., "init_args": {...}}, in which other
    strategies may be. All that is wrong with its parameters is said in one `OptionError`.
    """
    kind = KIND[key]
    if spec in NOTHING:
        return spec
    if kind == "cache":
        return class_of(kind, spec)
    name, given = unfold(kind, spec)
    cls = class_of(kind, name)
    known, inner = parameters(cls), inner_kinds(cls)
    made: dict[str, Any] = {}
    wrong: list[str] = []
    for parameter, value in given.items():
        try:
            if parameter not in known and not takes_any(cls):
                raise unknown_name(f"parameter of {kind} `{cls.__name__}`", parameter, known)
            if parameter not in inner or value is None:
                made[parameter] = typed(cls, parameter, value)
            elif takes_several(cls, parameter) and isinstance(value, list):
                made[parameter] = [built(inner[parameter], one) for one in value]
            else:
                made[parameter] = built(inner[parameter], value)
        except BassError as error:
            wrong.append(str(error))
    if wrong:
        raise OptionError(" ".join(wrong))
    return make(kind, cls, **made)


def typed(cls: type, parameter: str, value: Any) -> Any:
    """A value as the class's own annotation wants it: a mapping becomes the dataclass it is said to
    be.
    """
    if parameter not in parameters(cls):  # of a class that takes any: it knows what it may be
        return value
    try:
        parser = _parser(cls, parameter)
        said = parser.parse_object({"it": {parameter: value}}, defaults=False)
        return parser.instantiate(said).it[parameter]
    except (ArgumentError, TypeError, ValueError) as error:
        wanted = getattr(cls, "__annotations__", {}).get(parameter, "another type")
        raise OptionError(
            f"`{parameter}={value!r}` of `{cls.__name__}` is of the wrong kind: give "
            f"{getattr(wanted, '__name__', wanted)}."
        ) from error


@functools.cache
def _parser(cls: type, parameter: str) -> ArgumentParser:
    """One of that parameter alone; making it takes longer than what it is used for."""
    parser = ArgumentParser(exit_on_error=False)
    skip: set[str | int] = {name for name in parameters(cls) if name != parameter}
    parser.add_class_arguments(cls, "it", skip=skip, fail_untyped=False, instantiate=False)
    return parser


def called(spec: Any) -> Any:
    """A short name for a value of a setting: of a strategy with parameters Name(k=4), of anything
    else itself.
    """
    if isinstance(spec, Mapping) and "class_path" in spec:
        name = str(spec["class_path"]).rpartition(":")[2].rpartition(".")[2]
        given = spec.get("init_args") or {}
        inside = (
            ", ".join(f"{key}={called(value)}" for key, value in given.items())
            if isinstance(given, Mapping)
            else repr(given)
        )
        return f"{name}({inside})" if inside else name
    if isinstance(spec, list | tuple):
        return "[" + ", ".join(str(called(one)) for one in spec) + "]"
    if isinstance(spec, str) and re.fullmatch(r"[\w.]+:[\w.]+", spec):  # a class of the user's
        return spec.rpartition(":")[2]
    return spec if isinstance(spec, str | int | float | bool | None) else repr(spec)
