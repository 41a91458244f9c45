"""Checks of a user's strategies: one call tests that a strategy keeps the output exact.

    from bass.testing import check_policy

    def test_my_policy_is_exact():
        check_policy("my_package.my_module:MyPolicy")

Each check accepts what `bass.load` accepts (a registered name, "package.module:Class", a class, an
object). It returns None, or raises `ExactnessError` with the violated property, the expected and
the found value, and the smallest case that Hypothesis finds. Seeds are fixed, so a check is
deterministic. Statistical properties state their false-failure rate; another `seed` draws other
cases and samples.
"""

import importlib.util

from bass.errors import install

if importlib.util.find_spec("hypothesis") is None:
    raise ModuleNotFoundError(
        "`bass.testing` draws its cases with Hypothesis, which is not installed: "
        f"{install('testing')}."
    )

from bass.testing.checking import ExactnessError
from bass.testing.enumeration import Problem, output_laws
from bass.testing.properties_of_drafters import check_drafter
from bass.testing.properties_of_models import check_family, check_pair
from bass.testing.properties_of_policies import check_policy, check_stop_rule, check_trim
from bass.testing.properties_of_verifiers import check_verifier

__all__ = [
    "ExactnessError",
    "Problem",
    "check_drafter",
    "check_family",
    "check_pair",
    "check_policy",
    "check_stop_rule",
    "check_trim",
    "check_verifier",
    "output_laws",
]
