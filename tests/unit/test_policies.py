"""Algorithm 1 of BASS on the vectors that follow from its definition, and what every policy must
keep to.
"""

import numpy as np
import pytest

from bass.policies import BatchAdaptive, Fixed
from bass.policies.batch_adaptive import LengthState
from bass.records import Feedback

# (length, shrunk before, accepted by row) -> (length, shrunk)
VECTORS = [
    ((7, 0, [7, 3]), (9, 0)),
    ((9, 0, [9, 9]), (11, 0)),
    ((11, 0, [4, 2]), (9, 1)),
    ((9, 1, [3, 1]), (7, 1)),
    ((7, 1, [0, 0]), (5, 1)),
    ((3, 1, [0, 0]), (1, 1)),
    ((1, 1, [0, 0]), (1, 1)),
    ((1, 0, [1]), (3, 0)),
    ((31, 0, [31]), (32, 0)),
    ((32, 0, [32]), (32, 0)),
    ((32, 0, [10]), (28, 1)),
    ((32, 1, [10]), (27, 1)),
    ((20, 1, [19, 2]), (19, 1)),  # not below what was accepted
]


def feedback(accepted: list[int], active: list[bool] | None = None) -> Feedback:
    rows = len(accepted)
    return Feedback(np.full(rows, 32), np.array(accepted), np.array(active or [True] * rows), 0.01)


def state(rows: int, length: int, shrunk: bool = False) -> LengthState:
    return LengthState(np.full(rows, length), np.full(rows, shrunk))


@pytest.mark.parametrize(("before", "after"), VECTORS)
def test_algorithm_1_follows_its_vectors(
    before: tuple[int, int, list[int]], after: tuple[int, int]
) -> None:
    length, shrunk, accepted = before
    found = BatchAdaptive().update(state(len(accepted), length, bool(shrunk)), feedback(accepted))
    for row in range(len(accepted)):
        assert (found.length[row], int(found.shrunk[row])) == after


def test_algorithm_1_starts_at_seven_for_every_row() -> None:
    policy = BatchAdaptive()
    assert policy.lengths(policy.init(3)).tolist() == [7, 7, 7]


def test_rows_that_are_not_active_do_not_count() -> None:
    """A finished row may report anything: here a full acceptance, which must not make the others'
    drafts grow.
    """
    found = BatchAdaptive().update(state(2, 7), feedback([7, 2], [False, True]))
    assert (found.length.tolist(), found.shrunk.tolist()) == ([6, 6], [True, True])
    found = BatchAdaptive().update(state(2, 7), feedback([7, 7], [False, False]))
    assert (found.length.tolist(), found.shrunk.tolist()) == ([7, 7], [False, False])


def test_fixed_always_asks_for_k() -> None:
    for k in (0, 5):
        policy = Fixed(k)
        assert (
            policy.lengths(policy.update(policy.init(3), feedback([0, 0, 0]))).tolist() == [k] * 3
        )
