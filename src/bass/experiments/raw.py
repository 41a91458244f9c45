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
    problems.sentences.append(f"`{part}: {value!r:.60}` must be a mapping of names to values.")
    return {}


def named(value: Any) -> Any:
    """A mapping with texts for keys, which YAML may have read as numbers; anything else as it
    is.
    """
    return {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else value


def mappings(raw: Mapping[str, Any], part: str, problems: Problems) -> dict[int, dict[str, Any]]:
    """The mappings that a part of a config lists, by their place; each that is none, or empty, is a
    problem.
    """
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
