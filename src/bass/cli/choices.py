"""Strategies as options: `--policy lagged --policy.steps 2 --policy.policy fixed --policy.policy.k
3`, and so in a YAML file.

What was said is kept by the option's name without its dashes. A strategy's own parameters are
checked by a parser of their own, made from its class; those that are strategies again are chosen in
the same way, one level down.
"""

import argparse
import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from bass.api.registry import (
    PROTOCOLS,
    REGISTRIES,
    REQUIRED,
    class_of,
    inner_kinds,
    parameters,
    takes_several,
    unfold,
)
from bass.cli.parsing import new_parser, parse
from bass.errors import OptionError
from bass.plain_yaml import read_yaml

# The kind that each option names. A cache is a class, with no parameters of a user's.
OPTIONS = {kind: kind for kind in REGISTRIES if kind != "cache"} | {
    "draft_quantization": "quantization"
}
_NAMES = {kind: ", ".join(sorted(registry)) or "none yet" for kind, registry in REGISTRIES.items()}
_OWN = 'or a class of your own as "package.module:Class"'
HELP = {
    "policy": (
        f"how many tokens to draft: {_NAMES['policy']}, {_OWN}; its parameters follow as "
        "--policy.NAME"
    ),
    "stop_rule": f"what ends a draft early: {_NAMES['stop_rule']}, {_OWN}",
    "drafter": f"what proposes tokens: {_NAMES['drafter']}, {_OWN}",
    "verifier": f"which tokens to keep: {_NAMES['verifier']}, {_OWN}",
    "cache": f"layout of keys and values: {_NAMES['cache']}, {_OWN}",
    "attention": "attention backend: auto (one that fits the cache), "
    f"{_NAMES['attention']}, {_OWN}",
    "quantization": f"how the matrices are held in fewer bytes: {_NAMES['quantization']}, {_OWN}",
    "draft_quantization": "the same for the draft alone; by default that of the target",
}
_FORM = '{"class_path": "package.module.Class", "init_args": {"k": 4}}'


@dataclass(frozen=True)
class Choice:
    """A strategy, and what was said of its parameters.

    `whole`: the object that it is, where nothing was.
    """

    key: str
    name: str
    cls: type
    whole: Any
    base: dict[str, Any]
    arguments: list[str]
    parser: ArgumentParser
    inner: dict[str, "Choice | list[Choice]"]

    @property
    def spec(self) -> Any:
        """What `registry.make` takes.

        A parameter of a wrong kind, or of an unknown name, is refused here.
        """
        if self.whole is not None:
            return self.whole
        said = parse(self.parser, self.arguments, defaults=False)
        # parameters that are dataclasses become objects
        made = self.parser.instantiate(said).get(self.key)
        plain = {name: made[name] for name in vars(said.get(self.key) or Namespace())}
        inner = {
            name: [one.spec for one in c] if isinstance(c, list) else c.spec
            for name, c in self.inner.items()
        }
        return {"class_path": self.cls, "init_args": self.base | plain | inner}

    @property
    def names(self) -> list[str]:
        """By which the user asked for it and for what is in it."""
        inner = [one for c in self.inner.values() for one in (c if isinstance(c, list) else [c])]
        return [self.name, *(name for one in inner for name in one.names)]

    @property
    def help_groups(self) -> list[Any]:
        """Its options, and those of what is in it, as argparse shows them."""
        # after argparse's own two: positional arguments, and `--help`
        own = self.parser._action_groups[2:]
        inner = [one for c in self.inner.values() for one in (c if isinstance(c, list) else [c])]
        return [*own, *(group for one in inner for group in one.help_groups)]


def take_strategies(argv: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """What is said of strategies, `--policy X` and `--policy.k 6`, by key; and the other
    arguments.
    """
    said: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if word == "--":
            rest += [word, *words]
        elif not word.startswith("--") or not is_strategy(key):
            rest.append(word)
        else:
            said[key] = value if equals else next(words, "--")
            if said[key].startswith("--") and not equals:
                wanted = (
                    f"{_NAMES[OPTIONS[key]]}, {_OWN}"
                    if key in OPTIONS
                    else "one, or write `bass generate --help`"
                )
                raise OptionError(f"`--{key}` lacks its value: give {wanted}.")
    return said, rest


def is_strategy(key: str) -> bool:
    """Whether an option names a strategy, or a parameter of one."""
    return key.partition(".")[0] in OPTIONS


def over(said: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where what `more` says of a key replaces what was said of it and of all below it."""
    return {
        key: value
        for key, value in said.items()
        if not any(key == k or key.startswith(f"{k}.") for k in more)
    } | dict(more)


def choose(kind: str, key: str, spec: Any, said: Mapping[str, Any]) -> Choice:
    """The strategy that `spec` names; `said` of its parameters, by what follows `key`. What stands
    in `spec` itself yields to that.

    spec: a name, a mapping (or its JSON or YAML) with `class_path` and `init_args`, or an object,
    of which what is not said is kept.
    """
    spec, arguments = unfold(kind, _decoded(key, spec))
    said = {**arguments, **said}
    given = spec if PROTOCOLS[kind] in type(spec).__mro__ else None
    cls = class_of(kind, spec) if given is None else type(given)
    base = (
        {f.name: getattr(given, f.name) for f in fields(given) if f.init}
        if is_dataclass(given) and said
        else {}
    )
    inner: dict[str, Choice | list[Choice]] = {}
    kinds = inner_kinds(cls)
    for name, its_kind in kinds.items():
        one = said.get(name, base.pop(name, parameters(cls)[name]))
        below = _below(said, name)
        if one is None or one is REQUIRED:
            _refuse_without(f"{key}.{name}", below)
        elif takes_several(cls, name):
            several = _decoded(f"{key}.{name}", one)
            listed = list(several) if isinstance(several, list | tuple) else [several]
            inner[name] = [
                choose(its_kind, f"{key}.{name}.{i}", x, _below(below, str(i)))
                for i, x in enumerate(listed)
            ]
            _refuse_beyond(f"{key}.{name}", below, len(listed))
        else:
            inner[name] = choose(its_kind, f"{key}.{name}", one, below)
    plain = {name: value for name, value in said.items() if name.partition(".")[0] not in kinds}
    arguments = [f"--{key}.{name}={text(value)}" for name, value in plain.items()]
    name = (
        spec
        if isinstance(spec, str)
        else next((n for n, c in REGISTRIES[kind].items() if c is cls), cls.__name__)
    )
    return Choice(
        key,
        name,
        cls,
        None if said else given,
        base,
        arguments,
        _parser(key, name, cls, inner),
        inner,
    )


def chosen(option: str, spec: Any, said: Mapping[str, Any]) -> Choice | None:
    """`choose` for an option of its own, whose default is `spec`;

    None where there is nothing to choose: no stop rule, `auto`.
    """
    now, below = said.get(option, spec), _below(said, option)
    if now == spec and spec in (None, "auto"):
        _refuse_without(option, below)
        return None
    return choose(OPTIONS[option], option, now, below)


def text(value: Any) -> str:
    """A value as one would write it on a command line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _below(said: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {
        k.removeprefix(f"{key}."): value for k, value in said.items() if k.startswith(f"{key}.")
    }


def _refuse_without(key: str, below: Mapping[str, Any]) -> None:
    if below:
        raise OptionError(
            f"`--{key}.{next(iter(below))}` is a parameter of nothing: name a strategy with "
            f"`--{key}`."
        )


def _refuse_beyond(key: str, below: Mapping[str, Any], count: int) -> None:
    beyond = [name for name in below if name.partition(".")[0] not in map(str, range(count))]
    if beyond:
        raise OptionError(
            f"`--{key}.{beyond[0]}` belongs to none of the {count} that `--{key}` names: they "
            "count from 0."
        )


def _decoded(key: str, spec: Any) -> Any:
    """JSON and YAML's lists and mappings as what they mean; any other text is a name."""
    if not isinstance(spec, str) or not spec.startswith(("{", "[")):
        return spec
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(spec)
    try:
        return read_yaml(spec)
    except yaml.YAMLError as error:
        raise OptionError(
            f"`--{key} {spec}` is not of the form {_FORM}: write it so, as JSON or YAML."
        ) from error


def _parser(
    key: str, name: str, cls: type, inner: Mapping[str, Choice | list[Choice]]
) -> ArgumentParser:
    """Takes the parameters of a class, and shows those that are strategies, which are taken
    before.
    """
    parser, kinds = new_parser("generate", "parameters"), inner_kinds(cls)
    parser.add_class_arguments(cls, key, skip=set(kinds), fail_untyped=False, instantiate=False)
    group: Any = (
        parser._action_groups[2] if len(parser._action_groups) > 2 else parser.add_argument_group()
    )
    group.title = f"{key} {name}"
    for action in group._group_actions:
        if f"--{key}" in action.option_strings:  # shown with the other strategies, and taken before
            action.help = argparse.SUPPRESS
    for its_name, kind in kinds.items():
        several = " (several, as a list: [NAME, NAME])" if takes_several(cls, its_name) else ""
        now = inner.get(its_name)
        default = (
            json.dumps([one.name for one in now])
            if isinstance(now, list)
            else now.name
            if now
            else None
        )
        group.add_argument(
            f"--{key}.{its_name}",
            type=str,
            default=default,
            help=f"{HELP[kind]}{several}",
            metavar="NAME",
        )
    return parser
