"""Declares options: fields of dataclasses, each with its default, its help and its range."""

import typing
from collections.abc import Sequence
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, TypeVar

from bass.errors import OptionError, check_number

T = TypeVar("T")
PerPrompt = T | Sequence[T]  # one for all prompts, or one per prompt


def option(default: T, help: str, kind: str | None = None, within: str | None = None) -> T:
    """A field with its help. kind: kind of strategy that the option names. within: its interval."""
    return field(default=default, metadata={"help": help, "kind": kind, "within": within})


def like(base: type, name: str, default: T, help: str | None = None) -> T:
    """The option of a base class with another default, and other help if it is given."""
    [metadata] = [f.metadata for f in fields(base) if f.name == name]
    return field(default=default, metadata=metadata | ({"help": help} if help else {}))


def within(interval: str, default: T) -> T:
    """A field of a `Ranged` class: a number, or several, in an interval such as "(0, 1]". Its
    bounds may be other fields, as in "[1, {max_length}]".
    """
    return field(default=default, metadata={"within": interval})


class Ranged:
    """The base of dataclasses whose fields have intervals. Raises `OptionError` out of one."""

    def __post_init__(self) -> None:
        options: Any = self
        for one in fields(options):
            if "within" in one.metadata:
                interval = one.metadata["within"].format_map(vars(self))
                value = getattr(self, one.name)
                name = f"{type(self).__name__}.{one.name}"
                for number in value if value and isinstance(value, list | tuple) else (value,):
                    check_number(name, number, interval, one.type)


def check_options(options: Any) -> None:
    """Raise `OptionError` for the first value of a dataclass of options that is out of range."""
    for one in fields(options):
        value = getattr(options, one.name)
        several = isinstance(value, list) and for_one_prompt(one.type) is not one.type
        for own in value if several else (value,):
            check_value(one, own)


def check_value(one: Field[Any], value: Any) -> None:
    """Raise `OptionError` for a value of an option that is out of range."""
    hint, interval = for_one_prompt(one.type), one.metadata["within"]
    optional = type(None) in typing.get_args(hint)
    if interval is not None and not (optional and value is None):
        check_number(one.name, value, interval, hint)
    if hint is bool and not isinstance(value, bool):
        raise OptionError(f"`{one.name}={value!r:.60}` must be True or False.")


def for_one_prompt(hint: Any) -> Any:
    """The annotation of an option without its list of one value per prompt."""
    first, *others = typing.get_args(hint) or (hint,)
    return first if [typing.get_origin(other) for other in others] == [Sequence] else hint


def help_of(options: type) -> dict[str, str]:
    """The help of each option."""
    return {f.name: f.metadata["help"] for f in fields(options)}


def kinds_of(options: type) -> dict[str, str]:
    """The kind of each option that names a strategy."""
    return {f.name: f.metadata["kind"] for f in fields(options) if f.metadata["kind"]}


def called(strategy: Any) -> str:
    """A strategy's name, with its parameters if it has any."""
    kind = strategy if isinstance(strategy, type) else type(strategy)
    own = strategy is not kind and is_dataclass(strategy) and vars(strategy)
    return repr(strategy) if own else kind.__name__
