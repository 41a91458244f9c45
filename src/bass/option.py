"""Declares options: fields of dataclasses, each with its default, its help and its range."""

import typing
from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields
from typing import Any, TypeVar

from bass.errors import OptionError, check_flag, check_integer, is_finite

T = TypeVar("T")
PerPrompt = T | Sequence[T]  # one for all prompts, or one per prompt
Check = Callable[[str, Any], object]  # raises `OptionError` for a name and a value out of range


def option(default: T, help: str, kind: str | None = None, check: Check | None = None) -> T:
    """A field with its help. kind: kind of strategy that the option names. check: of its range."""
    return field(default=default, metadata={"help": help, "kind": kind, "check": check})


def like(base: type, name: str, default: T, help: str | None = None) -> T:
    """The option of a base class with another default, and other help if it is given."""
    [metadata] = [f.metadata for f in fields(base) if f.name == name]
    return field(default=default, metadata=metadata | ({"help": help} if help else {}))


def integer(least: int | None = None) -> Check:
    """The check of an integer."""
    return lambda name, value: check_integer(name, value, least)


def number(holds: Callable[[float], bool], range_: str) -> Check:
    """The check of a finite number. range_: in words."""

    def check(name: str, value: Any) -> None:
        if not (is_finite(value) and holds(value)):
            raise OptionError(f"`{name}={value!r:.60}` is out of range: give a number {range_}.")

    return check


def optional(check: Check) -> Check:
    """The check of a value that may be None."""
    return lambda name, value: None if value is None else check(name, value)


flag = check_flag
positive = number(lambda x: x > 0, "above 0")


def check_options(options: Any) -> None:
    """Raise `OptionError` for the first value of a dataclass of options that is out of range."""
    for one in fields(options):
        check_value(one, getattr(options, one.name))


def check_value(one: Field[Any], value: Any) -> None:
    """Raise `OptionError` for a value of an option that is out of range."""
    if (check := one.metadata.get("check")) is not None:
        check(one.name, value)


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
