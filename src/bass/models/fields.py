"""Reads the fields of a config."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_type_hints

from bass.errors import CheckpointError

Record = TypeVar("Record")


def read(
    record: type[Record],
    raw: Mapping[str, Any],
    names: Mapping[str, str],
    where: str = "config.json",
) -> Record:
    """A dataclass from a JSON object. names: of its fields in JSON; others have their defaults. A
    field that is absent has its default, and one that is null too, unless its type includes None.

    Raises `CheckpointError` for a field without a default that is missing.
    """
    hints, values = get_type_hints(record), dict[str, Any]()
    for field in fields(record):  # pyright: ignore[reportArgumentType]
        if (name := names.get(field.name)) is None:
            continue
        kinds, value = (hints[field.name], *get_args(hints[field.name])), raw.get(name)
        if value is not None or (name in raw and types.NoneType in kinds):
            if type(value) is int and float in kinds:
                value = float(value)
            values[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.default is MISSING:
            raise CheckpointError(f"{where} has no `{name}`: download the checkpoint again.")
    return record(**values)
