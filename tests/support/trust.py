"""How many examples a check of `bass.testing` needs: `python -m support.trust --examples 15 30` (in
tests/).

For each strategy that is known to be broken and each number of examples, how many of `--seeds` runs
with other cases and other samples find it out, and the processor time of a run. A number of
examples is trustworthy if all do.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from hypothesis import Phase

from bass.testing import (
    ExactnessError,
    check_drafter,
    check_pair,
    check_policy,
    check_stop_rule,
    check_verifier,
    checking,
)
from bass.testing.enumeration import rejection_cuts
from unit import test_testing_broken_drafters as drafters
from unit import test_testing_broken_pairs as pairs
from unit import test_testing_broken_policies as policies
from unit import test_testing_broken_verifiers as verifiers

Check = Callable[..., None]


def known() -> Iterator[tuple[str, Check]]:
    """Every broken strategy of the tests, by name, with its check."""
    for check, test, count in (
        (check_drafter, drafters.test_the_check_names_the_property_that_a_drafter_violates, 1),
        (check_verifier, verifiers.test_the_check_names_the_property_that_a_verifier_violates, 1),
        (check_policy, policies.test_the_check_names_the_property_that_a_policy_violates, 1),
        (check_stop_rule, policies.test_the_check_names_the_property_that_a_rule_violates, 1),
        (check_pair, pairs.test_the_check_names_the_property_that_a_cache_or_backend_violates, 2),
    ):
        for case in vars(test)["pytestmark"][0].args[1]:
            broken = getattr(case, "values", case)[:count]
            yield f"{check.__name__} {' '.join(map(called, broken))}", bound(check, *broken)
    for verifier in (verifiers.AcceptsAll, verifiers.LateBias):
        yield (
            f"check_verifier {verifier.__name__}, cuts",
            bound(check_verifier, verifier, rejection_cuts),
        )


def bound(check: Check, *strategies: Any) -> Check:
    return lambda **options: check(*strategies, **options)


def called(strategy: Any) -> str:
    return (
        strategy
        if isinstance(strategy, str)
        else getattr(strategy, "__name__", type(strategy).__name__)
    )


def found(check: Check, **options: int) -> bool:
    """Whether the check finds the strategy out; cases are not made small, which takes most of the
    time.
    """
    with mock.patch.object(checking, "PHASES", (Phase.generate,)):
        try:
            check(**options)
        except ExactnessError:
            return True
    return False


def main() -> None:
    """One line for each strategy and number of examples; the smaller numbers first, and no larger
    one once all seeds do.
    """
    parser = argparse.ArgumentParser(prog="python -m support.trust", description=__doc__)
    parser.add_argument("--examples", type=int, nargs="+", default=[15, 30, 60])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, check in known():
        if not any(part in name for part in asked.only):
            continue
        for examples in sorted(asked.examples):
            began = time.process_time()
            caught = sum(found(check, examples=examples, seed=seed) for seed in range(asked.seeds))
            spent = (time.process_time() - began) / asked.seeds
            print(
                f"{name:45} {examples:4} examples: {caught:3} of {asked.seeds}, {spent:5.1f} s",
                flush=True,
            )
            if caught == asked.seeds:
                break


if __name__ == "__main__":
    main()
