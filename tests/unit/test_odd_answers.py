"""Strategies that answer with tensors of a kind that nobody can compute with, or raise what would
end a loop: one sentence each.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import bass
from bass.drafters import ModelDrafter
from bass.drafters.ensemble import EnsembleDrafter
from bass.engine.drafter_context import OwnDraw
from bass.errors import PolicyError, StrategyError
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftLengthPolicy,
    StopRule,
    Verifier,
    Warp,
)
from bass.policies import Fixed
from bass.records import (
    Draft,
    Features,
    Feedback,
    History,
    Noise,
    RowAssignment,
    Sequences,
    Verdict,
    Window,
)
from bass.sampling import Sampling
from bass.testing.worlds import TableWorld
from bass.verifiers.rejection import Rejection
from support.engines import Setup, mixed_requests
from unit.checkpoints import Pair

TABLE = TableWorld()
CPU = torch.device("cpu")
Change = Callable[[Tensor], Any]


def quietly(change: Change) -> Change:
    """Without torch's warnings that such tensors are deprecated, or new."""

    def changed(value: Tensor) -> Any:
        with warnings.catch_warnings(action="ignore"):
            return change(value)

    return changed


ODD: dict[str, tuple[Change, str]] = {
    "meta": (lambda x: x.to("meta"), "is on `meta`: give a dense tensor on `cpu`"),
    "sparse": (lambda x: x.to_sparse(), "is a sparse tensor: give a dense tensor on `cpu`"),
    "rows of sparse": (
        quietly(lambda x: x.reshape(len(x), -1).to_sparse_csr()),
        "is a sparse tensor: give a dense tensor on `cpu`",
    ),
    "quantized": (
        quietly(lambda x: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.quint8)),
        "is a quantized tensor: give a dense tensor on `cpu`",
    ),
    "nested": (
        quietly(lambda x: torch.nested.nested_tensor(list(x.float()))),
        "is a nested tensor: give a dense tensor on `cpu`",
    ),
}


def unchecked(kind: type, **fields: object) -> Any:
    """As outside the tests, where the shapes of a record are not looked at when it is made."""
    made = object.__new__(kind)
    vars(made).update(fields)
    return made


def run(setup: Setup) -> None:
    setup.outcome(mixed_requests(TABLE))


def expect(setup: Setup, words: str, kind: type[StrategyError] = StrategyError) -> None:
    with pytest.raises(kind, match=re.escape(words)) as caught:
        run(setup)
    assert str(caught.value).count("\n") == 0


@dataclass(frozen=True)
class Drafts(Drafter):
    """A sound draft, of which one field is changed."""

    name: str
    change: Change

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        tokens = torch.zeros(len(lengths), k, dtype=torch.int64)
        probs = torch.nn.functional.one_hot(tokens, TABLE.vocab).float()
        fields: dict[str, Any] = {"tokens": tokens, "probs": probs, "lengths": lengths}
        return unchecked(Draft, **(fields | {self.name: self.change(fields[self.name])}))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["tokens", "probs", "lengths"])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_draft_of_odd_tensors(parts: int, name: str, odd: str) -> None:
    change, words = ODD[odd]
    drafts: Drafter = Drafts(name, change)
    drafter = drafts if parts == 1 else EnsembleDrafter((drafts, drafts), TABLE.vocab)
    expect(
        Setup(TABLE, CPU, policy=Fixed(2), drafter=lambda *_: drafter),
        f"`{name}` of the draft of `Drafts.propose` {words}",
    )


@dataclass(frozen=True)
class Judges(Verifier):
    """A sound verdict, of which one field is changed."""

    lossless: ClassVar[bool] = False
    name: str
    change: Change

    def __call__(self, draft: Draft, target_probs: Tensor, noise: Noise) -> Verdict:
        fields = vars(Rejection()(draft, target_probs, noise))
        return unchecked(Verdict, **(fields | {self.name: self.change(fields[self.name])}))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["tokens", "accepted"])
def test_a_verdict_of_odd_tensors(name: str, odd: str) -> None:
    change, words = ODD[odd]
    expect(
        Setup(TABLE, CPU, policy=Fixed(2), verifier=Judges(name, change)),
        f"`{name}` of the verdict of `Judges` {words}",
    )


@dataclass(frozen=True)
class Ends(StopRule):
    """Ends no draft."""

    change: Change

    def __call__(self, draft_probs: Tensor, so_far: int) -> Tensor:
        return self.change(draft_probs[:, 0] > 2)


@dataclass(frozen=True)
class Warps(Warp):
    """As `Sampling`, changed."""

    change: Change

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return self.change(Sampling(1.0)(logits, history))


@pytest.mark.parametrize("odd", ODD)
def test_a_stop_rule_and_a_warp_that_answer_with_odd_tensors(odd: str) -> None:
    change, words = ODD[odd]
    setup = Setup(TABLE, CPU, policy=Fixed(2))

    def obeying(setup: Setup, _: Any, scorers: Any) -> Drafter:
        return ModelDrafter(scorers("draft"), setup.warp, OwnDraw(), Ends(change))

    expect(replace(setup, drafter=obeying), f"The answer of `Ends` {words}")
    for length in (0, 2):
        warped = setup.but(policy=Fixed(length), warp=Warps(change))
        expect(warped, f"The answer of `Warps` {words}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.tolist(), "`Warps` answered with list: give probabilities in float32"),
        (lambda x: x[:, 0], "`Warps` answered with float32 of shape [3, 7]: give"),
        (lambda x: (x > 0.5).long(), "`Warps` answered with int64 of shape [3, 1, 7]: give"),
    ],
)
def test_a_warp_that_answers_with_no_probabilities(change: Change, words: str) -> None:
    for length in (0, 2):
        expect(Setup(TABLE, CPU, policy=Fixed(length), warp=Warps(change)), words)


@dataclass(frozen=True)
class Lengths(DraftLengthPolicy[int]):
    """Two tokens for every row, changed."""

    change: Change
    max_length: int = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> Any:
        return self.change(torch.full((state,), 2))

    def update(self, state: int, feedback: Feedback) -> int:
        return state


NO_ARRAY = "an object that is no NumPy array ("


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((change, NO_ARRAY) for change, _ in ODD.values()),
        (lambda x: x.bfloat16(), NO_ARRAY),
        (lambda x: x.float().requires_grad_(), ""),  # an array of floats where gradients are off
    ],
)
def test_lengths_of_odd_tensors(change: Change, words: str) -> None:
    def with_grad(x: Tensor) -> Any:
        with torch.inference_mode(False):
            return change(torch.full((len(x),), 2))

    words = f"`Lengths.lengths` returned {words}"
    expect(Setup(TABLE, CPU, policy=Lengths(with_grad)), words, PolicyError)


def stops(*_: Any, **__: Any) -> Any:
    """What a user's own code does whose data has come to its end."""
    return next(iter(()))


@dataclass(frozen=True)
class Exhausted(DraftLengthPolicy[Any]):
    """Raises StopIteration in one of its methods."""

    method: str
    max_length: int = 2

    def _at(self, method: str) -> None:
        if method == self.method:
            stops()

    def init(self, batch_size: int) -> np.ndarray:
        self._at("init")
        return np.full(batch_size, 2)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        self._at("lengths")
        return state

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        self._at("update")
        return state

    def reset(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        self._at("reset")
        return state


@dataclass(frozen=True)
class ExhaustedDrafter(Drafter):
    """Raises StopIteration in one of its methods."""

    method: str

    def _at(self, method: str) -> None:
        if method == self.method:
            stops()

    def build(self, context: DrafterContext) -> Drafter:
        self._at("build")
        return self

    def reserve(self, assignment: RowAssignment) -> None:
        self._at("reserve")

    def fill(self, window: Window) -> Features:
        self._at("fill")
        return ()

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        self._at("propose")
        return Draft(sequences.tokens[:, :k], None, lengths)


class ExhaustedVerifier(Verifier):
    """Raises StopIteration."""

    lossless: ClassVar[bool] = True
    __call__ = stops


class ExhaustedRule(StopRule):
    """Raises StopIteration."""

    __call__ = stops


EXHAUSTED: dict[str, dict[str, Any]] = {
    **{
        f"policy.{name}": {"policy": Exhausted(name)}
        for name in ("init", "lengths", "update", "reset")
    },
    **{
        f"drafter.{name}": {"drafter": ExhaustedDrafter(name), "draft": None}
        for name in ("build", "reserve", "fill", "propose")
    },
    "verifier": {"verifier": ExhaustedVerifier()},
    "stop rule": {"stop_rule": ExhaustedRule()},
}


@pytest.mark.parametrize("part", EXHAUSTED)
def test_a_strategy_that_raises_stop_iteration_ends_nothing_in_silence(
    part: str, pair: Pair
) -> None:
    options = {"draft": str(pair.draft), "policy": Fixed(2)} | EXHAUSTED[part]
    llm = bass.load(str(pair.target), cuda_graphs=False, **options)
    words = re.escape("`stops` (test_odd_answers.py, line ") + r"\d+\) raised StopIteration"
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate([[5, 6, 7], [9]], max_new_tokens=4),
        lambda: list(llm.stream([[5, 6, 7], [9]], max_new_tokens=4)),
        lambda: llm.warm_up([[5, 6, 7]], max_new_tokens=4),
    ]
    for call in calls if part not in ("policy.update",) else calls[:2]:
        with pytest.raises(StrategyError, match=words) as caught:
            call()
        assert str(caught.value).count("\n") == 0


def test_a_run_still_ends_when_its_reader_closes_it(pair: Pair) -> None:
    llm = bass.load(str(pair.target), draft=str(pair.draft))
    generation = llm.stream([[5, 6, 7]], max_new_tokens=4)
    next(iter(generation))
    generation.close()
    assert generation.result(interrupted=True).completions[0].finish_reason == "interrupted"
