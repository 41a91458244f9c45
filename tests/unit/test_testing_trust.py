"""The checks of `bass.testing`, as a user calls them, find every strategy that is known to be
broken, whatever the seed.
"""

import pytest

from support.trust import Check, found, known

pytestmark = pytest.mark.usefixtures("unchecked")
SEEDS = range(1, 4)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "check"), [*known()])
def test_with_its_default_examples_a_check_finds_every_known_mistake(
    name: str, check: Check
) -> None:
    assert [seed for seed in SEEDS if not found(check, seed=seed)] == []
