"""Settings, strategies, lists and counts in words."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


def called(spec: Any) -> Any:
    """A short name for the value of a setting: Name(k=4) for a strategy with parameters, else the
    value.
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


def in_words(value: Any) -> str:
    """A value of a setting."""
    named = called(value)
    return named if isinstance(named, str) and named else json.dumps(named)


def listed(values: Sequence[object]) -> str:
    """`1, 2 and 4`."""
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
