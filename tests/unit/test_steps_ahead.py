"""Steps of a policy of constant length are launched before the report of the step before; what
comes out is what comes out without.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch

from bass.drafters.validity import NOT_FINITE
from bass.engine.requests import Request
from bass.engine.run import EngineRun
from bass.engine.shapes import StepShape
from bass.engine.step import SpeculativeStep, StepReport
from bass.errors import StrategyError
from bass.interfaces import DraftLengthPolicy
from bass.ops.noise import row_key, step_noise
from bass.policies import Auto, BatchAdaptive, Exp3, Fixed, Lagged
from bass.testing.small_models import SmallLlama, SmallTable
from support.doubles import Turns
from support.engines import PAIRINGS, TABLE_DRAFTERS, RunOutput, Setup, mixed_requests
from support.matrix import matrix
from support.queued import Queued

TABLE = SmallTable()

# in every run with a draft length of 0 too; the others every night
ALSO_WITHOUT = ("model", "none")


def far(count: int) -> list[Request]:
    """Requests whose limits are far away, and not the same."""
    return [
        replace(request, limit=len(request.prompt) + 40 - 5 * i)
        for i, request in enumerate(mixed_requests(TABLE, count=count))
    ]


def queued(
    setup: Setup, requests: list[Any], at_hand: Callable[[StepShape], bool] = lambda shape: True
) -> tuple[EngineRun, Queued]:
    run = setup.engine(requests)
    step = Queued(run.step, at_hand)
    return replace(run, step=step), step


@pytest.mark.parametrize(
    ("pairing", "drafter", "k"),
    [
        pytest.param(
            pairing,
            drafter,
            k,
            marks=()
            if (k == 4 and i % 4 == 0) or (k == 0 and drafter in ALSO_WITHOUT)
            else pytest.mark.nightly,
        )
        for i, (pairing, drafter) in enumerate(
            zip(itertools.cycle(PAIRINGS), TABLE_DRAFTERS, strict=False)
        )
        for k in (0, 1, 4)
    ],
)
def test_what_comes_out_is_what_comes_out_of_one_step_after_the_other(
    pairing: str, drafter: str, k: int, device: torch.device
) -> None:
    """Rows end at their limits, at ends of sequence, and while another step is under way; requests
    wait for them or do not.
    """
    for count, eos in itertools.product((3, 7), ((), (1, 4))):
        setup = Setup(
            TABLE, device, PAIRINGS[pairing], Fixed(k), drafter=drafter, eos=eos, graphs=False
        )
        requests = far(count)
        expected = setup.outcome(requests)
        run, step = queued(setup, requests)
        found = RunOutput(run)
        assert found.tokens == expected.tokens
        assert found.logprobs == expected.logprobs
        assert found.done == expected.done
        assert found.histories() == expected.histories()
        assert found.acceptance() == expected.acceptance()
        assert max(step.told) <= 1, "never a third one"
        assert step.told[0] == 0
        assert step.launched == step.collected, "nothing is under way when all is done"
        assert eos or count > 3 or max(step.told) == 1


@pytest.mark.parametrize("flagged", range(4))
def test_nothing_of_a_flagged_step_or_of_one_launched_ahead_is_emitted(
    flagged: int, device: torch.device
) -> None:
    """On a device the host learns from the report that a draft was invalid: when the next step is
    under way.
    """
    setup = Setup(TABLE, device, policy=Fixed(3), graphs=False)
    expected = setup.outcome(far(3))
    run, step = queued(setup, far(3))
    launch, reports = step.launch, itertools.count()

    def flagging(*args: Any) -> Callable[[], StepReport]:
        collect = launch(*args)

        def later() -> StepReport:
            report = collect()
            invalid = [0, NOT_FINITE, 0]
            return replace(report, flags=invalid) if next(reports) == flagged else report

        return later

    step.launch = flagging  # type: ignore[method-assign]
    tokens: dict[int, list[int]] = {i: [] for i in range(3)}

    def emit() -> None:
        for emission in run:
            tokens[emission.request] += emission.tokens

    with pytest.raises(StrategyError, match="not finite"):
        emit()
    for i in range(3):
        history = expected.history(i)[:flagged]
        assert tokens[i] == expected.tokens[i][: sum(emitted for *_, emitted in history)]


def test_no_step_is_launched_ahead_of_an_admission_or_near_a_limit(
    device: torch.device,
) -> None:
    setup, requests = Setup(TABLE, device, policy=Fixed(3), graphs=False), far(7)
    run, step = queued(setup.but(eos=(1, 4)), requests)
    waited = False
    for _ in run:
        if step.launched > step.collected + 1:
            assert not run.schedule.admits
            waited |= bool(run.schedule.queue)
    assert waited
    # Every row may reach its limit in the step after the next one.
    run, step = queued(
        setup, [replace(request, limit=len(request.prompt) + 7) for request in requests[:3]]
    )
    list(run)
    assert max(step.told) == 0
    run, step = queued(setup, far(3), lambda shape: False)
    list(run)
    assert max(step.told) == 0
    prompt = far(1)[0].prompt
    run, step = queued(
        replace(setup, wrap=lambda step, _: replace(step, draft_context=len(prompt) + 14)),
        [Request(prompt, len(prompt) + 40, key) for key in range(3)],
    )
    list(run)
    plan = [record.k for record in run.trace.steps]
    assert (plan[0], plan[-1], step.told[-9]) == (3, 0, 1)


def test_a_policy_that_learns_has_each_report_before_the_next_step(device: torch.device) -> None:
    run, step = queued(Setup(TABLE, device, policy=BatchAdaptive(), graphs=False), far(3))
    list(run)
    assert max(step.told) == 0


TIMES = (1.0, 1.1, 1.2, 1.3, 1.4)
ARMS = Exp3(((0, 0), (0, 3), (1, 2), (1, 4)))


@pytest.mark.parametrize(
    ("policy", "drafter"),
    [
        (Auto(max_length=8), "model"),
        (Lagged(BatchAdaptive()), "model"),
        (Turns(), "choice"),
        (Auto(max_length=4, times=TIMES, others=((TIMES, 0.1),)), "choice"),
        (Lagged(ARMS), "choice"),
    ],
    ids=repr,
)
def test_a_policy_that_decides_a_step_in_advance_gives_the_same_with_steps_ahead(
    policy: Any, drafter: str, device: torch.device
) -> None:
    setup = Setup(TABLE, device, policy=policy, drafter=drafter, eos=(1, 4), graphs=False)
    requests = [replace(request, limit=len(request.prompt) + 60) for request in far(3)]
    expected = setup.outcome(requests)
    run, step = queued(setup, requests)
    found = RunOutput(run)
    assert (found.tokens, found.histories()) == (expected.tokens, expected.histories())
    assert max(step.told) == 1
    assert len({record.k for record in run.trace.steps}) > 1


def test_of_a_choice_a_step_is_launched_ahead_if_its_part_lacks_no_token(
    device: torch.device,
) -> None:
    """The model does after a step of the n-grams or without drafts; the n-grams never do."""
    turns = Turns(((0, 2), (1, 2), (1, 3), (0, 0), (0, 1), (1, 1), (0, 1), (0, 2)))
    setup = Setup(TABLE, device, policy=turns, drafter="choice", graphs=False)
    requests = [replace(request, limit=len(request.prompt) + 60) for request in far(3)]
    run, step = queued(setup, requests)
    list(run)
    parts = [record.drafter for record in run.trace.steps[:16]]
    assert parts == [0, 1, 1, 0, 0, 1, 0, 0] * 2
    for i, (before, part) in enumerate(itertools.pairwise(parts), 1):
        assert step.told[i] == (part <= before)


def test_a_request_that_its_reader_ends_gives_no_more_and_the_others_all(
    device: torch.device,
) -> None:
    setup = Setup(TABLE, device, policy=Fixed(2), graphs=False)
    requests = far(3)
    expected = setup.outcome(requests).tokens
    run, _ = queued(setup, requests)
    tokens: list[list[int]] = [[], [], []]
    ended = False
    for emission in run:
        assert not (ended and emission.request == 1)
        tokens[emission.request] += emission.tokens
        if emission.request == 1 and len(tokens[1]) > 5:
            run.finish(1)
            ended = True
    assert ended
    assert (tokens[0], tokens[2]) == (expected[0], expected[2])
    assert tokens[1] == expected[1][: len(tokens[1])]
    counted = sum(int(s.emitted[s.requests == 1].sum()) for s in run.trace.steps)
    assert counted == len(tokens[1]), "what nobody gets is not counted"
    for step in run.trace.steps:
        assert not (step.drafted + step.accepted + step.emitted)[step.requests < 0].any()


@matrix(strength=1, pairing=PAIRINGS, drafter=("self", "the target itself", "model"))
def test_a_row_that_ended_at_its_limit_is_not_drafted_for_by_steps_ahead(
    pairing: str, drafter: str, device: torch.device
) -> None:
    """It has no room: what is drafted for it would be written over a neighbour's keys."""
    world = SmallLlama()
    last: Any = world.models["target"].blocks[-1]
    # the first layers say what the target says: every draft is kept
    for layer in (last.attention.out, last.mlp.down):
        layer.weight.zero_()
    for length, when in ((3, 2), (30, 1)):
        prompts, k = [[1 + i % 7 for i in range(length)], [3, 1, 2]], 6
        limits = [length + (when + 2) * (k + 1), 3 + 50]
        requests = [
            Request(prompt, limit, row_key(0, prompt, i), i)
            for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        ]
        setup = Setup(world, device, PAIRINGS[pairing], Fixed(k), drafter=drafter, graphs=False)
        run, _ = queued(setup, requests)
        found: list[int] = []
        seen = 0
        for emission in run:
            if emission.request == 1:
                found += emission.tokens
            elif (seen := seen + 1) == when:
                run.finish(0)
        assert found == setup.outcome(requests).tokens[1]


def test_a_step_drafts_nothing_for_an_idle_row_that_has_room(device: torch.device) -> None:
    requests = [Request([1, 2, 3], 30, row_key(0, [1, 2, 3], i), i) for i in range(2)]
    run = Setup(SmallTable(), device, policy=Fixed(3), graphs=False).engine(requests)
    run.schedule.admit()
    step, rows, lengths = run.step, run.sequences, torch.tensor([3, 3], device=device)
    assert isinstance(step, SpeculativeStep)
    rows.active[0] = False
    noise = step_noise(rows.keys, rows.steps, rows.lens, 3)
    draft, flags = step.drafted(rows, lengths, 3, noise, rows.capacity)
    assert (draft.lengths.tolist(), flags.tolist()) == ([0, 3], [0, 0])


def test_a_longest_draft_that_is_no_longer_asked_for_is_drafted_no_more(
    device: torch.device,
) -> None:
    @final
    @dataclass(frozen=True)
    class Uneven(DraftLengthPolicy[int]):
        max_length: int = 6
        constant_length: ClassVar[bool] = True

        def init(self, batch_size: int) -> int:
            return batch_size

        def lengths(self, state: int) -> np.ndarray:
            return np.array([6, 1])

        def update(self, state: int, feedback: Any) -> int:
            return state

    requests = [
        replace(request, limit=len(request.prompt) + new)
        for request, new in zip(far(2), (20, 60), strict=True)
    ]
    run, step = queued(Setup(TABLE, device, policy=Uneven(), eos=(1, 4), graphs=False), requests)
    list(run)
    assert all(record.k == record.drafted.max() for record in run.trace.steps[:-1])
    assert max(step.told) == 1
