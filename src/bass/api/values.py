"""Converts values of options and parameters to their annotated types."""

import functools
import types
import typing
from argparse import ArgumentError
from collections.abc import Callable
from typing import Any, Literal

from jsonargparse import ArgumentParser

from bass.errors import BassError, OptionError

_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}
_PLURAL = {int: "integers", float: "numbers", str: "texts"}


class WrongKindError(Exception):
    """A value that its annotation does not allow."""


def typed(value: Any, hint: Any) -> Any:
    """Convert a value of JSON, YAML or a command line to the annotated type.

    Strings are parsed as YAML unless the annotation is a string, mappings become the annotated
    dataclass, lists become tuples. Raises `WrongKindError`; a `BassError` of the user's class
    passes.
    """
    try:
        parser = _parser(hint)
    except ValueError:  # jsonargparse does not support the annotation: skip the check
        return value
    try:
        parsed = parser.parse_object({"it": value}, defaults=False)
        return parser.instantiate(parsed).it
    except BassError:
        raise
    except (ArgumentError, TypeError, ValueError, ArithmeticError) as error:
        raise WrongKindError(in_words(hint)) from error


def option_value(shown: str, value: Any, hint: Any) -> Any:
    """`typed`. Raises `OptionError`, in which `shown` names the option and the value."""
    try:
        return typed(value, hint)
    except WrongKindError as error:
        raise wrong_type(shown, hint) from error


def wrong_type(shown: str, hint: Any) -> OptionError:
    """The error for an option and its value, as in `batch: x`."""
    return OptionError(f"`{shown}` is of the wrong type: give {in_words(hint)}.")


@functools.cache
def _parser(hint: Any) -> ArgumentParser:
    """A parser of one argument, cached because creating it takes longer than using it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=hint)
    return parser


def is_data(value: Any) -> bool:
    """Whether JSON can represent the value; other values are Python objects."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_data(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(is_data, value))
    return value is None or isinstance(value, str | int | float)


def in_words(hint: Any) -> str:
    """The type of an annotation in words, for messages."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(in_words, inside)))
    if origin is Literal:
        return ("" if len(inside) == 1 else "one of ") + ", ".join(map(repr, inside))
    if origin in (list, tuple) or hint in (list, tuple):
        inner = next(iter(inside), Any)
        example = " such as [1, 2]" if inner is int else ""
        return f"a list of {_PLURAL.get(inner, 'values')}{example}"
    if origin is Callable:
        return "a function"
    named = origin or hint
    return _WORDS.get(named) or f"an object of {getattr(named, '__name__', named)}"
