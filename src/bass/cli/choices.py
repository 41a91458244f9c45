"""Strategies as options: `--policy lagged --policy.steps 2 --policy.policy fixed --policy.policy.k
3`, and the same in a YAML file.

Values are stored by the option's name without its dashes, and combined to the argument of `make`:
{"class_path": ..., "init_args": {...}}, in which parameters may be strategies again.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from bass.api.kinds import KINDS
from bass.api.options import LoadOptions, help_of, kinds_of
from bass.api.resolve import (
    REQUIRED,
    class_of,
    parameters,
    takes_any,
    unfold,
    unknown_parameter,
)
from bass.cli.parsing import Option, taken
from bass.errors import OptionError, flag
from bass.plain_yaml import read_yaml

HELP = help_of(LoadOptions)
# The kind of strategy for each option. A cache is a class without user-defined parameters.
OPTIONS = {name: kind for name, kind in kinds_of(LoadOptions).items() if name != "cache"}
_FORM = '{"class_path": "package.module.Class", "init_args": {"k": 4}}'


def take_strategies(argv: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of strategies, `--policy X` and `--policy.k 6`, by key; and the other words."""
    one = "one, or write `bass generate --help`"
    given, rest = taken(argv, is_strategy, lambda key: f"give {HELP.get(key, one)}")
    return dict(given), rest


def is_strategy(key: str) -> bool:
    """Whether an option names a strategy, or a parameter of one."""
    return key.partition(".")[0] in OPTIONS


def over(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings; a key of `more` replaces the same key and all keys below it."""
    return {
        key: value
        for key, value in given.items()
        if not any(key == k or key.startswith(f"{k}.") for k in more)
    } | dict(more)


def chosen(option: str, default: Any, given: Mapping[str, Any]) -> Any:
    """The argument of `make` for an option; empty for the default, no stop rule, or `auto`."""
    now, below = given.get(option, default), _below(given, option)
    if now == default and default in (None, "auto"):
        _refuse_without(option, below)
        return default
    return choose(OPTIONS[option], option, now, below)


def choose(kind: str, key: str, spec: Any, given: Mapping[str, Any]) -> Any:
    """The mapping for the strategy of `spec`, with the parameters in `given`, by their names after
    `key`, over those in `spec` itself.

    spec: a name, a mapping (or its JSON or YAML) with `class_path` and `init_args`, or an object,
    which keeps its other parameters.
    """
    spec, arguments = unfold(key, _decoded(key, spec))
    given = {**arguments, **given}
    if isinstance(spec, KINDS[kind].interface):
        if not given:
            return spec
        if dataclasses.is_dataclass(spec):
            kept = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.init}
            given = kept | given
        spec = type(spec)
    cls, inner = class_of(kind, spec), {}
    known = parameters(cls)
    for name, parameter in known.items():
        one, below, where = given.get(name, parameter.default), _below(given, name), f"{key}.{name}"
        if parameter.kind is None:
            continue
        if one is None or one is REQUIRED:
            _refuse_without(where, below)
        elif parameter.several:
            inner[name] = _several(parameter.kind, where, one, below)
        else:
            inner[name] = choose(parameter.kind, where, one, below)
    plain = {name: value for name, value in given.items() if "." not in name and name not in inner}
    for name in (name for name in given if "." in name):
        head, _, part = name.partition(".")
        if head not in known and not takes_any(cls):
            raise unknown_parameter(kind, cls, head, known)
        if head in known and known[head].kind is not None:
            continue
        if head not in known or not dataclasses.is_dataclass(known[head].hint):
            raise OptionError(
                f"Unknown option `{flag(key)}.{name}`: `{flag(key)}.{head}` has no parameters."
            )
        whole = plain.setdefault(head, {})
        plain[head] = (whole if isinstance(whole, dict) else {}) | {part: given[name]}
    return {"class_path": spec, "init_args": plain | inner}


def _several(kind: str, key: str, spec: Any, below: Mapping[str, Any]) -> list[Any]:
    """The mappings for a parameter that is a list of strategies."""
    spec = _decoded(key, spec)
    listed = list(spec) if isinstance(spec, list | tuple) else [spec]
    beyond = [name for name in below if name.partition(".")[0] not in map(str, range(len(listed)))]
    if beyond:
        raise OptionError(
            f"`{flag(key)}.{beyond[0]}` is out of range: `{flag(key)}` names {len(listed)}, "
            "counted from 0."
        )
    return [choose(kind, f"{key}.{i}", one, _below(below, str(i))) for i, one in enumerate(listed)]


def names_in(spec: Any) -> Iterator[Any]:
    """The names of a strategy and of the strategies in it, as the user wrote them."""
    for one in spec if isinstance(spec, list) else [spec]:
        if isinstance(one, Mapping) and "class_path" in one:
            yield one["class_path"]
            for value in one["init_args"].values():
                yield from names_in(value)


def described(kind: str, key: str, spec: Any) -> Iterator[tuple[str, list[Option]]]:
    """Titles and options for the help: the parameters of a strategy and of the strategies in it."""
    name, given = unfold(key, spec)
    cls = type(name) if isinstance(name, KINDS[kind].interface) else class_of(kind, name)
    options: list[Option] = []
    below: list[tuple[str, str, Any]] = []
    for its_name, parameter in parameters(cls).items():
        option, default = f"{key}.{its_name}", parameter.default
        if parameter.kind is None:
            start = None if default is REQUIRED else default
            options.append(Option(option, parameter.hint, default=start))
            continue
        one = given.get(its_name, default)
        listed = list(one) if isinstance(one, list | tuple) else []
        below += [(parameter.kind, f"{option}.{i}", x) for i, x in enumerate(listed)]
        if not listed and one not in (None, REQUIRED):
            below.append((parameter.kind, option, one))
        several = " (several, as a list: [NAME, NAME])" if parameter.several else ""
        if listed:
            shown = json.dumps([_name(parameter.kind, x) for x in listed])
        else:
            shown = None if one in (None, REQUIRED) else _name(parameter.kind, one)
        text = f"{HELP[parameter.kind]}{several}"
        options.append(Option(option, str, text, shown, metavar="NAME"))
    if options:
        yield f"{key} {_name(kind, spec)}", options
    for one in below:
        yield from described(*one)


def _name(kind: str, spec: Any) -> str:
    """The name of a strategy."""
    name, _ = unfold(kind, spec)
    if isinstance(name, str):
        return name
    cls = name if isinstance(name, type) else type(name)
    return next((n for n, c in KINDS[kind].registry.items() if c is cls), cls.__name__)


def _below(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {
        k.removeprefix(f"{key}."): value for k, value in given.items() if k.startswith(f"{key}.")
    }


def _refuse_without(key: str, below: Mapping[str, Any]) -> None:
    if below:
        raise OptionError(
            f"`{flag(f'{key}.{next(iter(below))}')}` is a parameter without a strategy: name one "
            f"with `{flag(key)}`."
        )


def _decoded(key: str, spec: Any) -> Any:
    """JSON and YAML lists and mappings as values; other text is a name."""
    if not isinstance(spec, str) or not spec.startswith(("{", "[")):
        return spec
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(spec)
    try:
        return read_yaml(spec)
    except yaml.YAMLError as error:
        raise OptionError(
            f"`{flag(key)} {spec}` is not of the form {_FORM}: write it so, as JSON or YAML."
        ) from error
