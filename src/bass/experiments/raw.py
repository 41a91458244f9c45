"""Checks of the parts of a config as read from YAML: mappings, lists of mappings, numbers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bass.api.elsewhere import known_as, named_elsewhere
from bass.errors import unknown_name
from bass.problems import Problems
from bass.runs.settings import SETTINGS


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
    """A sentence about an unknown key, with the nearest known ones, or with the name in bass for a
    name of another library.
    """
    known = [str(one) for one in known]
    settings = {one: SETTINGS[one].metadata["help"] for one in known if one in SETTINGS}
    sentence = named_elsewhere(name, settings, "key") or unknown_name("key", name, known)
    return str(sentence) if where == name else f"In `{where}`: {sentence}"


def unknown_part(name: str, known: Iterable[str]) -> str:
    """A sentence about an unknown part of a config: the name of a setting, or any other."""
    setting = known_as(name, SETTINGS)
    if setting is None:
        return unknown(name, name, known)
    about = SETTINGS[setting].metadata["help"]
    return f"Unknown key `{name}`: give `{setting}` in `base` ({about})."


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
