"""In words, what two runs, or a run and what would go on with it, are not both made with."""

from collections.abc import Mapping

from bass.provenance.fingerprints import UNREADABLE
from bass.provenance.made_with import SOURCE
from bass.runs.records import Manifest


def changes(theirs: Manifest, ours: Manifest, cell: str) -> list[str]:
    """In words, what a cell would be made with now that is not what it was made with."""
    return [
        *other_software(theirs, ours),
        *other_inputs(theirs.inputs_of(cell), ours.inputs_of(cell)),
    ]


def other_software(theirs: Manifest, ours: Manifest) -> list[str]:
    """In words, which of bass, torch and the device is not what it was."""
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
    """In words, which fingerprints are not what they were."""
    return [
        _change(name, then.get(name), now.get(name))
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name) or now.get(name) == UNREADABLE
    ]


def notes(theirs: Manifest, ours: Manifest) -> list[str]:
    """Sentences on what has changed although results are kept, and need not be made again for
    it; earlier ones among them.
    """
    reported = [] if theirs.notes is None else theirs.notes
    for name, then, now in (
        ("Python", theirs.python, ours.python),
        ("The platform", theirs.platform, ours.platform),
    ):
        if then != now:
            reported = [
                *reported,
                f"{name} was {then} for the first results and is {now} for later ones.",
            ]
    return list(dict.fromkeys(reported))


def _change(name: str, then: str | None, now: str | None) -> str:
    if name == SOURCE:
        return f"the {SOURCE} has changed"
    kind, _, which = name.partition(" ")
    if kind == "package":
        return f"the package `{which}` was {then or 'not there'} and is {now or 'gone'}"
    if kind == "prompts":
        return f"the prompts of `{which}` have changed"
    if now == UNREADABLE:
        return f"the {kind}{which and f' `{which}`'} cannot be read"
    how = "is new" if then is None else "is gone" if now is None else "has changed"
    return f"the {kind}{which and f' `{which}`'} {how}"
