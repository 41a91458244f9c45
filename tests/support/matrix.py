"""Combinations of the registries: enough of them in every run, all of them in the nightly tier.

The registries multiply: layouts, backends, policies, drafters, verifiers. A defect nearly always
needs one value, or two that meet; so every run takes a set in which every pair of values occurs,
and the rest is marked `nightly`.
"""

import functools
import itertools
import random
from collections.abc import Container, Iterable, Mapping
from typing import Any

import pytest

Combination = tuple[object, ...]
night = functools.partial(pytest.param, marks=pytest.mark.nightly)  # a case of the nightly tier
made_for_the_night = True  # set by conftest.py: false where those marked `nightly` are left out


def matrix(
    strength: int = 2, whole: bool = True, apart: tuple[str, ...] = (), **axes: Iterable[object]
) -> pytest.MarkDecorator:
    """Parametrise a test over the product of the axes, which are its arguments; without `whole`,
    over the chosen part alone.

    apart: axes whose values meet in another test, in every run, and need not meet in this one.
    """
    chosen = covering({name: list(values) for name, values in axes.items()}, strength, apart)
    params = [
        pytest.param(
            *combination,
            id="-".join(map(str, combination)),
            marks=() if combination in chosen else pytest.mark.nightly,
        )
        for combination in itertools.product(*axes.values())
        if (whole and made_for_the_night) or combination in chosen
    ]
    return pytest.mark.parametrize(tuple(axes), params)


def by_day(values: Iterable[object], chosen: Container[object]) -> list[Any]:
    """The values as parameters: those among `chosen` in every run, the others `nightly`."""
    return [
        value if value in chosen else night(value)
        for value in values
        if made_for_the_night or value in chosen
    ]


def covering(
    axes: Mapping[str, list[object]], strength: int, apart: tuple[str, ...] = ()
) -> set[Combination]:
    """Few combinations in which every choice of values for any `strength` axes occurs: greedily,
    the same in every run.
    """
    strength = min(strength, len(axes))
    places = [
        which
        for which in itertools.combinations(range(len(axes)), strength)
        if len({list(axes)[i] for i in which} & {*apart}) < 2
    ]
    everything = list(itertools.product(*axes.values()))
    random.Random(0).shuffle(everything)
    met_by = [(combination, meetings(combination, places)) for combination in everything]
    open_ = set().union(*(met for _, met in met_by))
    chosen: set[Combination] = set()
    for wanted in range(len(places), 0, -1):  # first those that cover most
        for combination, met in met_by if open_ else ():
            if len(met & open_) >= wanted:
                chosen.add(combination)
                open_ -= met
    return chosen


def meetings(
    combination: Combination, places: list[tuple[int, ...]]
) -> set[tuple[tuple[int, object], ...]]:
    """What occurs in a combination at these places, each of which is some axes."""
    return {tuple((i, combination[i]) for i in which) for which in places}
