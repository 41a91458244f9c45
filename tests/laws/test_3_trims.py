"""Tier 3: a trim in the engine leaves the output exact. Every registered trim, as its defaults make
it and by confidence; which trims are exact at all is enumerated in `test_0_trims.py`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from jaxtyping import Int
from torch import Tensor

from bass.engine.prefill import Part
from bass.engine.run import EngineRun
from bass.engine.shapes import StepShape, StepShapes
from bass.engine.trimming import KEPT
from bass.errors import StrategyError
from bass.interfaces import DraftLengthPolicy, DraftTrim
from bass.policies import Fixed
from bass.records import Drafted
from bass.sampling_params import Sampling
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import SmallLlama, SmallTable
from bass.testing.statistics import count
from bass.trims import TRIMS, Survival, Threshold
from support.doubles import Cycle
from support.engines import LOSSLESS, Setup, mixed_requests
from support.matrix import by_day, matrix, night
from support.oracle import greedy, joint_law
from support.prepared_steps import Captured
from support.samples import assert_law, first_tokens

LLAMA, TABLE = SmallLlama(), SmallTable(seed=7)
NARROW = SmallTable(vocab=3, order=2, seed=1, sharpness=1.2, likeness=0.5)
PROMPT = [0, 2]
CHOSEN: dict[str, DraftTrim] = {
    **{name: cls() for name, cls in TRIMS.items()},
    "survival by confidence": Survival(1.5, "confidence"),
    "threshold by confidence": Threshold(0.4, "confidence"),
}
EXACT = {name: trim for name, trim in CHOSEN.items() if trim.lossless}


@matrix(
    strength=1,
    trim=CHOSEN,
    policy=(Fixed(4), Cycle((3, 0, 5, 0, 1)), ByRow(4)),
    drafter=("model", "model that stops", "ngram", "ensemble", "eagle"),
)
def test_greedy_decoding_emits_the_oracles_tokens(
    trim: str, policy: DraftLengthPolicy[Any], drafter: str, device: torch.device
) -> None:
    requests = mixed_requests(LLAMA, seed=2, count=7)
    setup = Setup(LLAMA, device, policy=policy, drafter=drafter, eos=(2,), trim=CHOSEN[trim])
    expected = [greedy(LLAMA, r.prompt, r.limit, (2,)) for r in requests]
    assert setup.outcome(requests).tokens == expected


@dataclass(frozen=True)
class Understates(DraftTrim):
    """Keeps everything, and says that it keeps nothing."""

    def most(self, rows: int, k: int) -> int:
        return 0

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        return drafted.lengths


@dataclass(frozen=True)
class OneOfEach(DraftTrim):
    """Keeps a token of each row."""

    def most(self, rows: int, k: int) -> int:
        return rows

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        return drafted.lengths.clamp(max=1)


class Noted(Captured):
    """Notes the sizes of packed windows with drafts."""

    sizes: ClassVar[set[int | None]] = set()

    def launch(
        self, sequences: Any, lengths: list[int], shape: StepShape, parts: Sequence[Part] = ()
    ) -> Any:
        if shape.k:
            Noted.sizes.add(shape.packed)
        return super().launch(sequences, lengths, shape, parts)


def test_packed_windows_have_room_for_what_a_trim_keeps(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for what is drafted: three rows that keep a token each need six places of fifteen."""
    monkeypatch.setattr("bass.engine.shapes.PACKED", (3, 6, 9))
    requests = mixed_requests(LLAMA, count=6)
    setup = Setup(LLAMA, device, policy=Fixed(4), batch=3, trim=OneOfEach(), graphs=False)

    def packed(run: EngineRun) -> EngineRun:
        shapes = StepShapes.of((0, 4), run.sequences.capacity, True, 3)
        return replace(run, step=Noted(run.step, None, shapes, None))

    found: list[list[int]] = [[] for _ in requests]
    for emission in packed(setup.engine(requests)):
        found[emission.request] += emission.tokens
    assert found == setup.outcome(requests).tokens
    assert Noted.sizes == {3, 6}
    with pytest.raises(StrategyError, match="`Understates` keeps more drafted tokens than"):
        list(packed(replace(setup, trim=Understates()).engine(requests)))


def test_packed_windows_are_as_large_as_the_last_steps_needed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trim that keeps no more than fit; the first has room for all that may be kept. Here the
    later ones have less room than the last steps needed.
    """
    monkeypatch.setattr("bass.engine.schedule.ROOM", 0.5)
    monkeypatch.setattr("bass.engine.shapes.PACKED", (4, 6, 9, 12))
    monkeypatch.setattr(Noted, "sizes", set[int | None]())
    requests = mixed_requests(TABLE, count=6)
    trim, warp, verifier = Survival(3.0, cost=0.4), Sampling(temperature=1.0), LOSSLESS["coupled"]
    setup = Setup(
        TABLE, device, policy=Fixed(4), verifier=verifier, warp=warp, batch=3, trim=trim,
        graphs=False,
    )  # fmt: skip
    run = setup.engine(requests)
    shapes = StepShapes.of((0, 4), run.sequences.capacity, True, 3)
    found: list[list[int]] = [[] for _ in requests]
    for emission in replace(run, step=Noted(run.step, None, shapes, None)):
        found[emission.request] += emission.tokens
    assert found == setup.outcome(requests).tokens
    assert Noted.sizes >= {4, 12}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("trim", "verifier", "policy"),
    [
        ("survival", "rejection", ByRow(3)),
        night("survival by confidence", "block", Fixed(3)),
        night("threshold", "rejection", Fixed(3)),
        ("threshold by confidence", "block", Fixed(3)),
    ],
)
def test_the_joint_law_of_three_tokens_is_the_targets(
    trim: str, verifier: str, policy: DraftLengthPolicy[Any], device: torch.device
) -> None:
    """In the later steps trims read what the earlier ones accepted."""
    warp = Sampling(temperature=0.9)
    setup = Setup(NARROW, device, policy=policy, verifier=LOSSLESS[verifier], warp=warp)
    tokens, _ = first_tokens(setup.but(trim=EXACT[trim]), PROMPT, 4, 53248)
    assert_law(count(tokens[:, :3], 3), joint_law(NARROW, PROMPT, 3, warp))


@pytest.mark.parametrize("trim", by_day(CHOSEN, ("survival by confidence", "tetris")))
def test_a_seed_gives_the_same_tokens_whatever_a_trim_keeps(
    trim: str, device: torch.device
) -> None:
    """With `coupled`, also if it reads the drafted tokens."""
    requests = mixed_requests(TABLE, seed=3)
    warp, verifier = Sampling(temperature=1.0), LOSSLESS["coupled"]
    setup = Setup(TABLE, device, policy=Fixed(4), verifier=verifier, warp=warp, batch=4)
    plain, trimmed = setup.outcome(requests), setup.but(trim=CHOSEN[trim]).outcome(requests)
    assert trimmed.tokens == plain.tokens
    assert trimmed.steps[0].drafted.sum() < plain.steps[0].drafted.sum()


@pytest.mark.parametrize("trim", [name for name in EXACT if EXACT[name].batch_invariant])
def test_a_trim_by_the_row_gives_the_same_tokens_alone_and_in_a_batch(
    trim: str, device: torch.device
) -> None:
    requests = mixed_requests(TABLE, seed=4, count=6)
    setup = Setup(TABLE, device, policy=OwnPast(), warp=Sampling(1.0), trim=CHOSEN[trim])
    together = setup.outcome(requests)
    assert together.tokens == [setup.outcome([one]).tokens[0] for one in requests]


def test_a_report_tells_kept_and_trimmed_tokens(device: torch.device) -> None:
    requests = mixed_requests(TABLE, seed=5)
    setup = Setup(TABLE, device, policy=Fixed(4), drafter="the target itself", batch=4)
    trim = Survival(1.5)
    outcome, plain = setup.but(trim=trim).outcome(requests), setup.outcome(requests)
    lens = {i: len(request.prompt) for i, request in enumerate(requests)}
    for step in outcome.steps:
        assert step.trimmed is not None
        active = step.requests >= 0
        assert step.drafted.sum() <= trim.most(int(active.sum()), 4)
        for row in np.flatnonzero(active):
            request = int(step.requests[row])
            asked = min(4, requests[request].limit - lens[request] - 1)
            assert step.drafted[row] + step.trimmed[row] == asked
            assert step.accepted[row] == step.drafted[row]
            lens[request] += int(step.emitted[row])
    assert all(step.trimmed is None for step in plain.steps)


@final
@dataclass(frozen=True)
class Spy(DraftTrim):
    """Keeps what it is given, and two tokens of each row."""

    reads_probs: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True
    seen: list[Drafted] = field(default_factory=list)

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        tensors = vars(drafted).values()
        self.seen.append(Drafted(*(None if one is None else one.clone() for one in tensors)))
        return drafted.lengths.clamp(max=2)


def test_a_trim_is_given_the_rows_own_past_and_the_draft_models_distributions() -> None:
    """The counts follow from the trace, and begin anew with each request of a row. At temperature 0
    the distributions are the draft model's all the same.
    """
    spy, requests = Spy(), mixed_requests(TABLE, seed=6, count=14)
    policy, device = Cycle((4, 0, 3, 0, 0, 2)), torch.device("cpu")
    outcome = Setup(TABLE, device, policy=policy, batch=3, trim=spy).outcome(requests)
    counts: dict[int, np.ndarray] = {}
    texts, seen = {i: [*r.prompt] for i, r in enumerate(requests)}, iter(spy.seen)
    for step in outcome.steps:
        given = next(seen) if (step.drafted + step.trimmed).any() else None
        for row in np.flatnonzero(step.requests >= 0):
            request = int(step.requests[row])
            own = counts[request] * KEPT if request in counts else np.zeros((2, 4))
            if given is not None:
                k = given.tried.shape[1]
                both = np.stack((given.tried[row], given.accepted[row]))
                np.testing.assert_allclose(both, own[:, :k], atol=1e-6)
                assert given.probs is not None
                assert given.tokens is not None
                assert given.lengths[row] == step.drafted[row] + step.trimmed[row]
                text = texts[request] + given.tokens[row].tolist()
                for slot in range(int(given.lengths[row])):
                    logits = TABLE.oracle("draft", np.array([text[: len(texts[request]) + slot]]))
                    probs = np.exp(logits[0] - np.logaddexp.reduce(logits[0]))
                    np.testing.assert_allclose(given.probs[row, slot], probs, atol=1e-5)
            accepted, kept = int(step.accepted[row]), int(step.drafted[row])
            own[0, : min(accepted + 1, kept)] += 1
            own[1, :accepted] += 1
            counts[request] = own
            new = outcome.tokens[request][len(texts[request]) - len(requests[request].prompt) :]
            texts[request] += new[: int(step.emitted[row])]
    assert next(seen, None) is None
    assert len({*itertools.chain.from_iterable(s.requests for s in outcome.steps)} - {-1}) == 14
