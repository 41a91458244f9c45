"""Declares options: fields of dataclasses, each with its default, its help and its range."""

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from bass.errors import OptionError, check_number, unknown_name

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
        check_options(self, f"{type(self).__name__}.")


def check_options(options: Any, prefix: str = "") -> None:
    """Raise `OptionError` for the first value of a dataclass that is out of its range, or has a
    number that is, or is none of its names.
    """
    for one in fields(options):
        hints = [hint for hint in (one.type, *typing.get_args(one.type)) if hint is not None]
        names = [x for h in hints if typing.get_origin(h) is Literal for x in typing.get_args(h)]
        value = getattr(options, one.name)
        if names and isinstance(value, str) and value not in names:
            raise unknown_name(f"`{prefix}{one.name}`", value, names)
    for one in (one for one in fields(options) if "within" in one.metadata):
        value = getattr(options, one.name)
        for own in value if value and isinstance(value, list | tuple) else (value,):
            check_value(one, own, prefix, vars(options))


def check_needed(options: Any, other: str, *names: str) -> None:
    """Raise `OptionError` for the first of these options that is given without the other one."""
    for name in names:
        if getattr(options, name) and not getattr(options, other):
            raise OptionError(f"`{name}` is for `{other}`: give it too, or leave this out.")


def check_value(
    one: Field[Any], value: Any, prefix: str = "", others: Mapping[str, Any] = {}
) -> None:
    """Raise `OptionError` for a value of an option that is out of range."""
    hint, interval = for_one_prompt(one.type), one.metadata["within"]
    optional = type(None) in typing.get_args(hint)
    if interval is not None and not (optional and value is None):
        check_number(f"{prefix}{one.name}", value, interval.format_map(others), hint)
    if hint is bool and not isinstance(value, bool):
        raise OptionError(f"`{one.name}={value!r:.60}` must be True or False.")


def for_one_prompt(hint: Any) -> Any:
    """The annotation of an option without its list of one value per prompt."""
    *single, several = typing.get_args(hint) or (hint,)
    listed = single and typing.get_origin(several) is Sequence
    return typing.Union[tuple(single)] if listed else hint  # noqa: UP007  (of a tuple)


def help_of(options: type) -> dict[str, str]:
    """The help of each option."""
    return {f.name: f.metadata["help"] for f in fields(options)}


def called(strategy: Any) -> str:
    """A strategy's name, with its parameters if it has any."""
    kind = strategy if isinstance(strategy, type) else type(strategy)
    own = strategy is not kind and is_dataclass(strategy) and vars(strategy)
    # an empty parameter, as `times=()` of `auto`, says nothing
    return re.sub(r", \w+=\(\)", "", repr(strategy)) if own else kind.__name__
