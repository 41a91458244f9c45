"""Checks of the parts of a config as read from YAML: mappings, lists of mappings, numbers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bass.errors import unknown_name
from bass.problems import Problems


def mapping(raw: Mapping[str, Any], part: str, problems: Problems) -> dict[str, Any]:
    """A part of a config that must be a mapping; anything else is a problem."""
    value = {} if raw.get(part) is None else raw[part]
    if isinstance(value, Mapping):
        return named(value)
    problems.sentences.append(f"`{part}: {value!r:.60}` must be a mapping of names to values.")
    return {}


def named(value: Any) -> Any:
    """A mapping with its keys as texts (YAML may read numbers); other values are unchanged."""
    return {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else value


def mappings(raw: Mapping[str, Any], part: str, problems: Problems) -> dict[int, dict[str, Any]]:
    """The mappings in a list of a config, by index; an empty or other entry is a problem."""
    value = [] if raw.get(part) is None else raw[part]
    if not isinstance(value, list):
        problems.sentences.append(
            f"`{part}: {value!r:.60}` must be a list of mappings, such as [{{batch: 1}}]."
        )
        return {}
    found = {i: named(one) for i, one in enumerate(value) if isinstance(one, Mapping) and one}
    problems.sentences += [
        f"`{part}.{i}: {one!r:.60}` must be a mapping of names to values, such as {{batch: 1}}."
        for i, one in enumerate(value)
        if i not in found
    ]
    return found


def unknown(where: str, name: str, known: Iterable[Any]) -> str:
    """A sentence about an unknown key, with the nearest known ones."""
    sentence = str(unknown_name("key", str(name), map(str, known)))
    return sentence if where == name else f"In `{where}`: {sentence}"


def endless(value: Any, where: str) -> list[str]:
    """The places of numbers that JSON cannot represent."""
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
