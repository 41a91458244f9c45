"""The public kit finds out policies that read a clock or a source of randomness, by whatever name
they have it.
"""

import datetime
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime as Moment
from functools import partial
from random import randrange
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng, randint

from bass.interfaces import DraftLengthPolicy
from bass.testing import ExactnessError, check_policy
from bass.testing.laws_of_policies import CLOCK, SAME, TWICE
from bass.testing.purity import another_world, clocks_read

pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass(frozen=True)
class By(DraftLengthPolicy[Any]):
    """The next length is what `source` gives at the end of a step, modulo 4."""

    source: Callable[[], Any]
    max_length: int = 3

    def init(self, batch_size: int) -> Any:
        return batch_size, 0

    def lengths(self, state: Any) -> Any:
        return np.full(*state)

    def update(self, state: Any, feedback: Any) -> Any:
        return state[0], self.source() % 4


class Slow(By):
    """Shorter drafts after a slow step, of which the kit has none."""

    def update(self, state: Any, feedback: Any) -> Any:
        began = self.source()
        return state[0], 1 if self.source() - began > 5 else 3


class Always(By):
    """Reads the hour whenever it is asked."""

    def lengths(self, state: Any) -> Any:
        return np.full(state[0], self.source() % 4)


CLOCKS: dict[str, DraftLengthPolicy[Any]] = {
    "a name of its own": Slow(lambda: perf_counter()),
    "a date": By(lambda: Moment.now().hour),
    "a date of its module": Always(lambda: datetime.datetime.now(datetime.UTC).hour),
    "a day": By(lambda: datetime.date.today().day),
    "a default": Slow(lambda clock=monotonic: clock()),
    "an attribute": Slow(monotonic),
}
RANDOM: dict[str, Callable[[], int]] = {
    "the global generator": lambda: randrange(4),
    "NumPy's": lambda: int(randint(4)),
    "a generator without a seed": lambda: int(default_rng().integers(4)),
    "another one": lambda: random.Random().randrange(4),
    "the system's": lambda: os.urandom(1)[0],
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_is_found_by_whatever_name_a_policy_has_it(clock: str) -> None:
    with pytest.raises(ExactnessError) as error:
        check_policy(CLOCKS[clock], examples=20)
    assert error.value.law == CLOCK
    assert error.value.found.startswith(("`time.", "`date"))


@pytest.mark.parametrize("source", RANDOM)
def test_randomness_is_found_by_whatever_name_a_policy_has_it(source: str) -> None:
    with pytest.raises(ExactnessError) as error:
        check_policy(By(RANDOM[source]), examples=20)
    assert error.value.law in (SAME, TWICE)


def test_clocks_that_are_replaced_and_moments_that_are_not_now_are_no_clocks() -> None:
    with another_world(1e6, 0.001, 0), clocks_read() as read:
        assert time.perf_counter() < time.monotonic()
        Moment.fromtimestamp(0, datetime.UTC)
    assert read == []
    with clocks_read() as read:
        partial(time.time)()  # which docstrings say is not seen
        time.time()
    assert read == ["time.time"]
