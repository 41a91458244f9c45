"""The public kit proves every registered strategy exact, within pytest and without, and leaves
nothing behind.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bass.drafters import DRAFTERS, Replay
from bass.errors import OptionError, PairingError
from bass.policies import POLICIES
from bass.stop_rules import STOP_RULES
from bass.testing import check_drafter, check_pair, check_policy, check_stop_rule, check_verifier
from bass.testing.doubles import ByRow, Cycle, OwnPast, Unsure
from bass.verifiers import VERIFIERS
from support.engines import PAIRINGS
from support.matrix import by_day, night

pytestmark = pytest.mark.usefixtures("unchecked")  # as a user's pytest has it
FEW = 4
# of those whose properties the laws, too, try in every run
SOME = ("bass", "model", "confidence", "rejection", next(iter(PAIRINGS)))
# of drafters that cannot be made without
ARGUMENTS: dict[str, Any] = {"replay": Replay(((1, 2, 0, 1), (0, 2)))}


def some(names: Iterable[str]) -> list[Any]:
    """The names, those that are not of `SOME` for the night."""
    return by_day(names, SOME)


@pytest.mark.parametrize("policy", [*some(POLICIES), OwnPast(), night(ByRow()), Cycle], ids=str)
def test_every_policy_is_exact(policy: Any) -> None:
    check_policy(policy, examples=FEW)


@pytest.mark.parametrize("rule", [*some(STOP_RULES), night(Unsure())], ids=str)
def test_every_stop_rule_is_exact(rule: Any) -> None:
    check_stop_rule(rule, examples=FEW)


@pytest.mark.parametrize("drafter", some(DRAFTERS))
def test_every_drafter_is_exact(drafter: str) -> None:
    check_drafter(ARGUMENTS.get(drafter, drafter), examples=FEW)


@pytest.mark.parametrize("verifier", some(VERIFIERS))
def test_every_verifier_is_exact_or_says_that_it_is_not(verifier: str) -> None:
    check_verifier(verifier, examples=FEW)


@pytest.mark.parametrize("pairing", some(PAIRINGS))
def test_every_pair_of_layout_and_backend_is_exact(pairing: str) -> None:
    check_pair(*PAIRINGS[pairing], examples=FEW)


def test_what_is_no_strategy_and_what_does_not_fit_is_refused_in_a_sentence() -> None:
    with pytest.raises(OptionError, match="Did you mean `fixed`"):
        check_policy("fixd")
    with pytest.raises(OptionError, match="no drafter"):
        check_drafter(3)
    with pytest.raises(PairingError, match="Cannot pair `PerRow` with `PaddedCache`"):
        check_pair("padded", "per-row")


def run(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.nightly
def test_a_plain_script_needs_no_pytest_gets_no_warning_and_finds_no_file_afterwards(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "from bass.policies import Fixed\n"
        "from bass.interfaces import DraftLengthPolicy\n"
        "class TooLong(DraftLengthPolicy):\n"
        "    max_length = 3\n"
        "    def init(self, batch_size): return batch_size\n"
        "    def lengths(self, state): return __import__('numpy').full(state, 4)\n"
        "    def update(self, state, feedback): return state\n"
    )
    done = run(
        tmp_path,
        "import sys; sys.dont_write_bytecode = True\n"
        "from bass.testing import ExactnessError, check_policy, check_verifier\n"
        "check_policy('fixed', examples=3); check_verifier('rejection', examples=3)\n"
        "try: check_policy('mine:TooLong', examples=3)\n"
        "except ExactnessError as error: print(error)\n"
        "print('pytest' in sys.modules)",
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "`TooLong` violates a property: it runs without an error."
    assert said[2].startswith("  found: PolicyError: `TooLong.lengths` returned 4; every length")
    assert said[3].startswith("  smallest case: 1 row(s); step 1: rows [0] begin a new prompt")
    assert said[-1] == "False"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_without_hypothesis_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys; sys.modules['hypothesis'] = None; import bass.testing")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "which is not installed: `pip install 'bass-decoding[testing]'`."
    )
