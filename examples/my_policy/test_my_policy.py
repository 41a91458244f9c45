"""The policy keeps the library's laws, and does what it says."""

import numpy as np
from my_policy import MyPolicy

from bass.records import Feedback
from bass.testing import check_policy


def test_it_keeps_the_laws_of_policies() -> None:
    check_policy(MyPolicy)


def test_it_drafts_longer_while_the_rows_accept_more_and_does_not_count_idle_ones() -> None:
    policy = MyPolicy(margin=2, memory=0.5)
    state = policy.init(3)
    assert policy.lengths(state).tolist() == [4, 4, 4]
    active = np.array([True, True, False])
    for _ in range(12):
        drafted = policy.lengths(state) * active
        accepted = np.array([5, 3, 0])  # 4 in the mean of the active rows
        state = policy.update(state, Feedback(drafted, accepted, active, seconds=0.01))
    assert policy.lengths(state).tolist() == [6, 6, 6]
