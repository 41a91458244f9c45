"""Checks of the axes and exclusions of a config."""

from collections.abc import Iterable, Mapping
from typing import Any

from bass.experiments.raw import unknown
from bass.problems import Problems
from bass.report.table import is_column
from bass.runs.words import called


def exclusions(
    given: Iterable[Mapping[str, Any]], axes: Mapping[str, Any], problems: Problems
) -> list[dict[str, list[Any]]]:
    """The combinations to leave out, as labels of axes; unknown ones are problems."""
    found: list[dict[str, list[Any]]] = []
    for one in given:
        wanted = {
            key: [called(v) for v in value] if isinstance(value, list) else [called(value)]
            for key, value in one.items()
        }
        for key, labels in wanted.items():
            known = [str(label) for label in axes.get(key, {})]
            if key not in axes:
                problems.sentences.append(unknown(f"exclude.{key}", key, axes))
            problems.sentences += [
                unknown(f"exclude.{key}", str(label), known)
                for label in labels
                if key in axes and str(label) not in known
            ]
        if wanted.keys() <= {*axes}:
            found.append(wanted)
    return found


def refuse_lost(base: Mapping[str, Any], axes: Mapping[str, Any], problems: Problems) -> None:
    """Report a parameter in the base run of a strategy that an axis replaces in every cell."""
    for key in base:
        head, dot, parameter = key.partition(".")
        for axis in (
            axis
            for axis, labels in axes.items()
            if dot and labels and all(head in overlay for overlay in labels.values())
        ):
            problems.sentences.append(
                f"`base.{key}` would have no effect, since the axis `{axis}` replaces the "
                f"`{head}`: give `{parameter}` there."
            )


def refuse_columns(axes: Iterable[str], problems: Problems) -> None:
    """Report an axis whose values the table of the run would lose."""
    problems.sentences += [
        f"The axis `{axis}` has the name of a column of the run's table (`bass table`), which "
        "would hide its values: name it otherwise."
        for axis in axes
        if is_column(axis)
    ]


def refuse_overlap(axes: Mapping[str, Mapping[Any, Mapping[str, Any]]], problems: Problems) -> None:
    """Report two axes that set the same setting."""
    axis_of: dict[str, str] = {}  # by setting: the first axis that sets it
    for axis, labels in axes.items():
        for key in sorted({key for overlay in labels.values() for key in overlay}):
            if (one := axis_of.setdefault(key, axis)) != axis:
                problems.sentences.append(
                    f"The axes `{one}` and `{axis}` both set `{key}`: take it out of one of them."
                )
