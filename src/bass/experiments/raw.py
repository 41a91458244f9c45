"""Parts of a config as YAML gave them: a mapping, a list of mappings, and what they must not
hold.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bass.errors import unknown_name
from bass.problems import Problems


def mapping(raw: Mapping[str, Any], part: str, problems: Problems) -> dict[str, Any]:
    """What a part of a config says, by name; anything but a mapping is a problem."""
    value = {} if raw.get(part) is None else raw[part]
    if isinstance(value, Mapping):
        return named(value)
    problems.told.append(f"`{part}: {value!r:.60}` must be a mapping of names to values.")
    return {}


def named(value: Any) -> Any:
    """A mapping with texts for keys, which YAML may have read as numbers; anything else as it
    is.
    """
    return {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else value


def mappings(raw: Mapping[str, Any], part: str, problems: Problems) -> list[dict[str, Any]]:
    """The mappings that a part of a config lists; anything else is a problem."""
    value = [] if raw.get(part) is None else raw[part]
    if isinstance(value, list) and all(isinstance(one, Mapping) and one for one in value):
        return [named(one) for one in value]
    problems.told.append(
        f"`{part}: {value!r:.60}` must be a list of mappings, such as [{{batch: 1}}]."
    )
    return []


def unknown(where: str, name: str, known: Iterable[Any]) -> str:
    """A sentence about a key that there is not, with the nearest ones."""
    sentence = str(unknown_name("key", str(name), map(str, known)))
    return sentence if where == name else f"In `{where}`: {sentence}"


def endless(value: Any, where: str) -> list[str]:
    """Where numbers are that JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{where}: {value}"]
    inside = (
        enumerate(value)
        if isinstance(value, list)
        else value.items()
        if isinstance(value, Mapping)
        else ()
    )
    labels = (
        [f"{where}: {label}" for label in value if isinstance(label, float) and label != label]
        if isinstance(value, Mapping)
        else []
    )
    return labels + [found for key, one in inside for found in endless(one, f"{where}.{key}")]
