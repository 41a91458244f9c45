"""A strategy that answers with a tensor on another device, or with something that is none, ends the
run with one sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bass.api.resolve import make
from bass.drafters import ModelDrafter
from bass.engine.drafter_context import OwnDraw
from bass.errors import OptionError, PolicyError, StrategyError
from bass.interfaces import Drafter, StopRule, Verifier, Warp
from bass.policies import Fixed
from bass.records import Draft
from bass.sampling import Sampling
from bass.testing.small_models import SmallTable
from bass.verifiers.rejection import Rejection
from support.engines import Setup, mixed_requests

TABLE = SmallTable()
SETUP = Setup(TABLE, torch.device("cpu"), policy=Fixed(2))
ODD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "meta": (lambda x: x.to("meta"), "is on `meta`: give a dense tensor on `cpu`"),
    "sparse": (lambda x: x.to_sparse(), "is a sparse tensor: give a dense tensor on `cpu`"),
}
odd = pytest.mark.parametrize(("change", "words"), ODD.values(), ids=ODD)


def expect(setup: Setup, words: str, kind: type[StrategyError] = StrategyError) -> None:
    with pytest.raises(kind) as caught:
        setup.outcome(mixed_requests(TABLE))
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0


@dataclass(frozen=True)
class Changed(Drafter, Verifier, StopRule, Warp):
    """A sound strategy of any kind, of whose answer one field is changed."""

    lossless: ClassVar[bool] = False
    change: Callable[[Tensor], Any]
    name: str = ""

    def answer(self, record: Any) -> Any:
        made = object.__new__(type(record))  # as outside of the tests, where shapes are not checked
        vars(made).update(vars(record) | {self.name: self.change(getattr(record, self.name))})
        return made

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Any:
        tokens = torch.zeros(len(lengths), k, dtype=torch.int64)
        probs = torch.nn.functional.one_hot(tokens, TABLE.vocab).float()
        return self.answer(Draft(tokens, probs, lengths))

    def __call__(self, first: Any, *others: Any) -> Any:
        if len(others) == 2:
            return self.answer(Rejection()(first, *others))
        if isinstance(others[0], int):
            return self.change(first[:, 0] > 2)
        return self.change(Sampling(1.0)(first, *others))


@odd
@pytest.mark.parametrize("name", ["tokens", "probs", "lengths"])
def test_a_draft(name: str, change: Any, words: str) -> None:
    expect(
        replace(SETUP, drafter=lambda *_: Changed(change, name)),
        f"`{name}` of the draft of `Changed.propose` {words}",
    )


@odd
@pytest.mark.parametrize("name", ["tokens", "accepted"])
def test_a_verdict(name: str, change: Any, words: str) -> None:
    verifier = Changed(change, name)
    expect(replace(SETUP, verifier=verifier), f"`{name}` of the verdict of `Changed` {words}")


@odd
def test_a_stop_rule_and_a_warp(change: Any, words: str) -> None:
    def obeying(setup: Setup, _: Any, scorers: Any) -> Drafter:
        return ModelDrafter(scorers("draft"), setup.warp, OwnDraw(), Changed(change))

    expect(replace(SETUP, drafter=obeying), f"The answer of `Changed` {words}")
    expect(replace(SETUP, warp=Changed(change)), f"The answer of `Changed` {words}")


@odd
def test_lengths(change: Any, words: str) -> None:
    policy: Any = type("Own", (Fixed,), {"lengths": lambda self, n: change(torch.full((n,), 2))})
    expect(replace(SETUP, policy=policy(2)), "that is no NumPy array (", PolicyError)


def test_a_flag_that_is_no_truth_value() -> None:
    own: Any = type("Own", (Fixed,), {"constant_length": "no"})
    with pytest.raises(OptionError, match="has `constant_length = 'no'`, which is not a bool"):
        make("policy", own)
