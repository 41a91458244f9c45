"""Types and ranges of the fields of a config, and the reader that checks both."""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from bass.errors import CheckpointError
from bass.ops.activation import ACTIVATIONS

LARGEST = 2**31 - 1  # of any integer in a config
Record = TypeVar("Record")


@dataclass(frozen=True)
class Range:
    """Numbers from `least` on, or above it."""

    least: float
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return value > self.least or (value == self.least and not self.above)

    def __str__(self) -> str:
        return f"{'above' if self.above else 'of at least'} {self.least}"


Size = Annotated[int, Range(1)]
Positive = Annotated[float, Range(0, above=True)]
Act = Annotated[str, ACTIVATIONS]  # the name of an activation function
NAMES: dict[type, str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "a string", tuple: "a list",
    types.NoneType: "null",
}  # fmt: skip


def read(
    record: type[Record],
    raw: Mapping[str, Any],
    names: Mapping[str, str],
    where: str = "config.json",
) -> Record:
    """A dataclass from a JSON object. names: of its fields in JSON; others have their defaults. A
    field that is absent has its default, and one that is null too, unless its type includes None.

    Raises `CheckpointError` for a field without a default that is missing, and for a value of
    another type or range.
    """
    hints, values = get_type_hints(record, include_extras=True), dict[str, Any]()
    for field in fields(record):  # pyright: ignore[reportArgumentType]
        if (name := names.get(field.name)) is None:
            continue
        hint, value = hints[field.name], raw.get(name)
        if value is not None:
            try:
                values[field.name] = typed(hint, value)
            except (ValueError, OverflowError) as error:
                raise CheckpointError(
                    f"{where} has `{name}={value!r:.100}`; `bass` reads {error} there: "
                    "correct the file, or give another checkpoint."
                ) from error
        elif name in raw and types.NoneType in get_args(hint):
            values[field.name] = None
        elif field.default is MISSING:
            raise CheckpointError(f"{where} has no `{name}`: download the checkpoint again.")
    return record(**values)


def typed(hint: Any, value: Any) -> Any:
    """A value of JSON in the type of a field: an integer is also a number.

    Raises `ValueError`, with what the type is in words, for other types, and for numbers that are
    no size or not finite.
    """
    kind, options = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        value, limit = typed(options[0], value), options[1]  # a `Range`, or the values
        if value in limit:
            return value
        words = f"{NAMES[options[0]]} {limit}" if isinstance(limit, Range) else ", ".join(limit)
        raise ValueError(words)
    if kind in (Union, types.UnionType):
        wanted: list[str] = []
        for option in options:
            try:
                return typed(option, value)
            except ValueError as error:
                wanted.append(str(error))
        raise ValueError(" or ".join(wanted))
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(typed(options[0], item) for item in value)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is not float and type(value) is kind and (kind is not int or 0 <= value <= LARGEST):
        return value
    raise ValueError(NAMES.get(kind, kind.__name__))
