"""Strict JSON for dataclasses: exactly their names, exactly their types."""

import functools
import json
import math
import types
import typing
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from bass.errors import RunFolderError
from bass.plain_json import parse_json

T = TypeVar("T")
MOST_INT = 2**63


class Json:
    """A dataclass that is written as a JSON object, with its fields in order."""

    # for a damaged text
    REMEDY: ClassVar[str] = "restore it, or delete the cell's folder and run it again"

    def to_json(self, indent: int | None = None) -> str:
        """The record as JSON on one line, or with `indent` spaces per level.

        Raises for numbers that JSON does not have (NaN, infinity).
        """
        return written(self, indent)

    @classmethod
    def from_json(cls: type[T], text: str, where: str = "The text") -> T:
        """The inverse; `where` begins the sentence of an error."""
        remedy = cls.REMEDY if issubclass(cls, Json) else Json.REMEDY
        return checked(cls, parsed(text, where, remedy), where)

    @classmethod
    def check_version(cls, data: dict[str, Any], where: str) -> None:
        """Raise an error for another format version, before other checks."""


def written(value: Any, indent: int | None = None) -> str:
    """A dataclass as JSON."""
    try:
        return json.dumps(asdict(value), allow_nan=False, indent=indent)
    except ValueError as error:
        raise RunFolderError(
            f"A `{type(value).__name__}` holds a number that is not finite ({error}), which JSON "
            "cannot hold: leave it out."
        ) from error


def parsed(text: str, where: str, remedy: str = Json.REMEDY) -> dict[str, Any]:
    """The JSON object in a text."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def finite(number: str) -> float:
        if not math.isfinite(value := float(number)):
            raise ValueError(f"the number {number:.20} is too large")
        return value

    try:
        data = parse_json(text, parse_constant=refuse, parse_float=finite)
    except ValueError as error:
        raise RunFolderError(f"{where} is damaged ({error}): {remedy}.") from error
    if not isinstance(data, dict):
        raise RunFolderError(
            f"{where} holds {type(data).__name__} instead of an object: it is damaged, or not of a "
            "run folder."
        )
    return data


def checked(kind: type[T], data: dict[str, Any], where: str) -> T:
    """An instance of the dataclass, from an object that has its names and types."""
    assert is_dataclass(kind)
    if issubclass(kind, Json):
        kind.check_version(data, where)
    known = {f.name: f for f in fields(kind)}
    missing = [name for name, f in known.items() if name not in data and f.default is MISSING]
    unknown = [name for name in data if name not in known]
    if missing or unknown:
        reported = " and ".join(
            part
            for part in (
                f"lacks {', '.join(missing)}" if missing else "",
                f"has the unknown {', '.join(unknown)}" if unknown else "",
            )
            if part
        )
        raise RunFolderError(
            f"{where} {reported}: it is no `{kind.__name__}` of this version, or damaged."
        )
    hints = _hints(kind)
    try:
        return kind(**{name: _as(hints[name], value, name) for name, value in data.items()})
    except RunFolderError as error:
        raise RunFolderError(
            f"{where} is no valid `{kind.__name__}`: {str(error).rstrip('.')}."
        ) from error


# read once for each class: a run has a record for each step
_hints = functools.cache(typing.get_type_hints)


def _as(hint: Any, value: Any, name: str) -> Any:
    """The value, if it has the type; integers are numbers too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is types.UnionType:
        return (
            None
            if value is None
            else _as(next(a for a in arguments if a is not type(None)), value, name)
        )
    if origin is list and isinstance(value, list):
        return [_as(arguments[0], item, f"{name}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _as(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if origin is None and is_dataclass(hint) and isinstance(value, dict):
        return checked(typing.cast(type, hint), value, f"`{name}`")
    if (
        hint in (int, float)
        and isinstance(value, int)
        and not isinstance(value, bool)
        and not -MOST_INT <= value < MOST_INT
    ):
        raise RunFolderError(f"`{name}` is {value!r:.60}, and must fit into 64 bits")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    wanted = getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
    raise RunFolderError(f"`{name}` is {value!r:.60}, and must be {wanted}")
