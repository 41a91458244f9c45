"""Differences between the inputs of two runs, or of a run and its continuation, in words."""

from collections.abc import Mapping
from typing import Any

from bass.provenance.fingerprints import UNREADABLE
from bass.provenance.made_with import SOURCE
from bass.runs.records import Manifest

_IN_WORDS = {"python": "Python", "platform": "The platform"}


def changes(theirs: Manifest, ours: Manifest, cell: str) -> list[str]:
    """The inputs of a cell that have changed since it was made, in words."""
    return [
        *other_software(theirs, ours),
        *other_inputs(theirs.inputs_of(cell), ours.inputs_of(cell)),
    ]


def other_software(theirs: Manifest, ours: Manifest) -> list[str]:
    """Which of bass, torch and the device have changed, in words."""
    return [
        f"{name} was {then} and is {now}"
        for name, then, now in (
            ("bass", theirs.bass, ours.bass),
            ("torch", theirs.torch, ours.torch),
            ("the device", theirs.device, ours.device),
        )
        if then != now
    ]


def other_inputs(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Which fingerprints have changed, in words."""
    return [
        _change(name, then.get(name), now.get(name))
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name) or now.get(name) == UNREADABLE
    ]


def notes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Sentences on changes between two manifests that keep the results valid, including earlier
    ones.
    """
    reported = theirs.get("notes") or []
    for name in ("python", "platform"):
        then, now = theirs.get(name), ours.get(name)
        if None not in (then, now) and then != now:
            reported = [
                *reported,
                f"{_IN_WORDS[name]} was {then} for the first results and is {now} for later ones.",
            ]
    return list(dict.fromkeys(reported))


def _change(name: str, then: str | None, now: str | None) -> str:
    if name == SOURCE:
        return f"the {SOURCE} has changed"
    kind, _, which = name.partition(" ")
    if kind == "package":
        return f"the package `{which}` was {then or 'not there'} and is {now or 'missing'}"
    if kind == "prompts":
        return f"the prompts of `{which}` have changed"
    if now == UNREADABLE:
        return f"the {kind}{which and f' `{which}`'} cannot be read"
    how = "is new" if then is None else "is missing" if now is None else "has changed"
    return f"the {kind}{which and f' `{which}`'} {how}"
