"""Requests that arrive while others run: at given times, and from threads."""

import gc
import threading
import weakref
from concurrent.futures import CancelledError, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass import Arrival
from bass.engine.prefill import Part
from bass.engine.requests import Request
from bass.engine.run import EngineRun
from bass.engine.shapes import StepShapes
from bass.errors import OptionError, RequestError, StrategyError
from bass.policies import Fixed
from bass.records import Feedback, Sequences
from bass.testing.doubles import OwnPast
from bass.testing.small_models import SmallLlama, SmallTable
from support.engines import RunOutput, Setup
from unit.test_generation import save_pair_member

PROMPTS = ["def f(x):", "a", "import numpy as np\n", "class A", "b", "x = ["]
OPTIONS: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20, "stop": ["q"]}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> bass.LLM:
    root: Path = tmp_path_factory.mktemp("pair")
    save_pair_member(root / "target", 1, 0.0)
    save_pair_member(root / "draft", 2, 0.15)
    return bass.load(root / "target", root / "draft", policy=OwnPast(), max_batch_size=2)


def own(index: int) -> dict[str, Any]:
    """Options of a request that other requests do not have."""
    drafts = (None, 0, 2)[index % 3]
    return {"seed": 10 + index, "max_draft_length": drafts, "max_new_tokens": 5 + 4 * index}


def of(completion: bass.Completion) -> tuple[Any, ...]:
    """What the queue does not change."""
    return completion.token_ids, completion.text, completion.finish_reason


@pytest.fixture(scope="module")
def alone(llm: bass.LLM) -> list[bass.Completion]:
    """The completion of each prompt, generated alone."""
    calls = [llm.generate(p, **(OPTIONS | own(i))) for i, p in enumerate(PROMPTS)]
    return [result.completions[0] for result in calls]


@pytest.mark.parametrize("gap", [0.0, 0.02])
def test_arrivals_get_what_they_get_alone_as_they_end(
    llm: bass.LLM, alone: list[bass.Completion], gap: float
) -> None:
    arrivals = (Arrival(p, gap * i, own(i)) for i, p in enumerate(PROMPTS))
    found = list(llm.serve(arrivals, **OPTIONS))
    assert sorted(one.prompt_index for one in found) == [*range(6)]
    ends = []
    for one in found:
        assert of(one) == of(alone[one.prompt_index])
        assert one.arrival_seconds == gap * one.prompt_index
        assert one.prefill_seconds is not None
        assert one.first_token_seconds is not None
        ends.append(one.prefill_seconds + one.seconds)
        times = one.arrival_seconds, one.prefill_seconds, one.first_token_seconds, ends[-1]
        assert [*times] == sorted(times)
    assert ends == pytest.approx(sorted(ends))


def test_plain_prompts_arrive_at_once_and_have_the_options_of_the_call(llm: bass.LLM) -> None:
    queue = llm.arriving(PROMPTS, OPTIONS | {"num_return_sequences": 2})
    ended = [*queue.completions()]
    result = queue.result()
    assert sorted(map(repr, result.completions)) == sorted(map(repr, ended))
    expected = [llm.generate(p, 2, **OPTIONS).completions for p in PROMPTS]
    assert [*map(of, result.completions)] == [of(one) for two in expected for one in two]
    stats = result.stats
    assert min(stats.ttft, stats.tpot, stats.tokens_per_second) > 0
    assert stats.active_rows == stats.row_steps / (2 * stats.steps)
    assert 1 <= stats.tau == stats.emitted / stats.row_steps
    assert stats.tokens == sum(len(one.token_ids) for one in result.completions)


@pytest.mark.parametrize("alone", ["def f(x):", {"prompt": "def f(x):"}, [5, 6, 7]])
def test_a_prompt_alone_is_one_request_as_it_is_of_generate(llm: bass.LLM, alone: Any) -> None:
    [expected] = llm.generate(alone, **OPTIONS).completions
    for requests in (alone, Arrival(alone), iter([alone])):
        assert [*map(of, llm.serve(requests, **OPTIONS))] == [of(expected)]


@pytest.mark.parametrize("at", [float("nan"), -1.0, float("inf")])
def test_a_time_that_never_comes_is_an_error(at: float) -> None:
    with pytest.raises(OptionError, match=rf"`Arrival.at={at}` is out of range"):
        Arrival("a", at)


def test_times_out_of_order_are_an_error_with_both(llm: bass.LLM) -> None:
    arrivals = [Arrival("a", 0.0), Arrival("b", 0.02), Arrival("c", 0.01)]
    with pytest.raises(RequestError, match=r"Request 2 arrives at 0.01 s, before .* 0.02 s: give"):
        list(llm.serve(arrivals, **OPTIONS))


def test_a_time_budget_ends_the_whole_call(llm: bass.LLM) -> None:
    found = list(llm.serve(PROMPTS, **(OPTIONS | {"time_budget": 1e-9, "stop": None})))
    assert {one.finish_reason for one in found} == {"time"}
    assert len(found) == 6


def test_an_arrival_that_is_invalid_is_an_error_when_it_is_read(llm: bass.LLM) -> None:
    with pytest.raises(RequestError, match="Prompt 1 has 1 tokens, which with 400 new ones"):
        list(llm.serve(["a", Arrival("a", 0.0, {"max_new_tokens": 400})], max_new_tokens=2))
    with pytest.raises(RequestError, match="at most 32 end tokens"):
        llm.submit("a", stop_token_ids=[*range(40)], max_new_tokens=9)
    with pytest.raises(OptionError, match="`time_budget` is of the call of `serve`"):
        list(llm.serve([Arrival([1, 2], 0.0, {"time_budget": 1.0})]))
    with pytest.raises(RequestError, match="one sample, not 2"):
        llm.submit(["a", "b"], max_new_tokens=9)
    with pytest.raises(RequestError, match="one sample, not 2"):
        llm.submit("a", num_return_sequences=2, max_new_tokens=9)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="cancel the future"):
        llm.submit("a", time_budget=1.0, max_new_tokens=9)


def ended() -> None:
    """Wait for the thread of `submit`."""
    for thread in threading.enumerate():
        if thread.name == "bass.LLM.submit":
            thread.join(10)
            assert not thread.is_alive()


def test_futures_have_what_a_request_gets_alone(
    llm: bass.LLM, alone: list[bass.Completion]
) -> None:
    events: list[bass.StreamEvent] = []
    futures = [
        llm.submit(p, on_event=events.append if i == 2 else None, **(OPTIONS | own(i)))
        for i, p in enumerate(PROMPTS)
    ]
    results = [future.result(10) for future in futures]
    assert [*map(of, results)] == [*map(of, alone)]
    assert "".join(event.text for event in events) == results[2].text
    assert [event.finish_reason for event in events][-1] == results[2].finish_reason
    assert len(events) == llm.generate(PROMPTS[2], **(OPTIONS | own(2))).stats.row_steps
    assert all(0 <= one.prefill_seconds <= one.first_token_seconds for one in results)  # type: ignore[operator]
    ended()


def test_a_cancelled_request_gives_its_row_to_the_next(
    llm: bass.LLM, alone: list[bass.Completion]
) -> None:
    """While it decodes, and while it waits. Its last event says so; an error there is ignored."""
    begun, events = threading.Event(), [list[bass.StreamEvent]() for _ in range(3)]

    def seen(i: int, event: bass.StreamEvent) -> None:
        events[i].append(event)
        begun.set()
        assert i != 1 or event.finish_reason is None

    long: dict[str, Any] = {"max_new_tokens": 240, "ignore_eos": True}
    futures = [llm.submit("aab"[i], on_event=partial(seen, i), **long) for i in range(3)]
    last = llm.submit(PROMPTS[0], **(OPTIONS | own(0)))
    assert begun.wait(10)
    for future in futures:
        assert future.cancel()
    assert of(last.result(10)) == of(alone[0])
    assert not wait(futures, 10).not_done
    with pytest.raises(CancelledError):
        futures[2].result(10)
    ended()
    for one in events:
        *before, end = one
        assert (end.finish_reason, end.token_ids) == ("cancelled", [])
        assert {event.finish_reason for event in before} <= {None}


def test_errors_reach_the_futures_and_later_requests_are_served(
    llm: bass.LLM, alone: list[bass.Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mine(event: bass.StreamEvent) -> None:
        raise KeyError("mine")

    of_user, other = (
        llm.submit("a", on_event=mine, **OPTIONS),
        llm.submit(PROMPTS[0], **(OPTIONS | own(0))),
    )
    assert repr(of_user.exception(10)) == "KeyError('mine')"
    assert of(other.result(10)) == of(alone[0])
    ended()

    def fails(*_: Any) -> None:
        raise StrategyError("no step")

    with monkeypatch.context() as patch:
        patch.setattr(EngineRun, "_launched", fails)
        futures = [llm.submit(p, **OPTIONS) for p in PROMPTS]
        for future in futures:
            with pytest.raises(StrategyError, match="no step"):
                future.result(10)
    ended()
    assert of(llm.submit(PROMPTS[1], **(OPTIONS | own(1))).result(10)) == of(alone[1])


def test_an_llm_that_is_dropped_answers_what_it_was_asked(
    llm: bass.LLM, alone: list[bass.Completion]
) -> None:
    other = bass.LLM(llm.models, llm.plan)
    dropped, future = weakref.ref(other), other.submit(PROMPTS[2], **(OPTIONS | own(2)))
    del other
    assert of(future.result(10)) == of(alone[2])
    ended()
    gc.collect()
    assert dropped() is None


def test_between_two_steps_a_chunk_of_a_long_prompt_is_fed(device: torch.device) -> None:
    """All of it where no other row runs."""
    run = Setup(SmallTable(), device, policy=Fixed(0), batch=2, graphs=False).engine(
        [Request([i + 1] * n, n + 12 * (i + 1), i) for i, n in enumerate((30, 2, 25, 4, 5))]
    )
    run.schedule.chunk = 7
    prefill, fed = run.step.prefill, list[tuple[int, bool]]()

    def counted(rows: Sequences, parts: list[Part]) -> None:
        fed.append((sum(p.last - p.first for p in parts), max(run.schedule.serving) >= 0))
        prefill(rows, parts)

    object.__setattr__(run.step, "prefill", counted)
    RunOutput(run)
    assert fed[0] == (29 + 1, False)
    assert [count for count, running in fed if running] == [7, 7, 7, 3, 3, 4]
    assert sum(count for count, _ in fed) == 29 + 1 + 24 + 3 + 4


class LongAtFirst(OwnPast):
    """Drafts three tokens in the first step of a request, then one."""

    def lengths(self, state: np.ndarray) -> np.ndarray:
        return np.where(state == 3, 3, 1)


@pytest.mark.parametrize(
    ("policy", "passes"), [(Fixed(2), [29 + 1 + 4]), (LongAtFirst(), [29 + 1 + 4, 8])]
)
def test_a_step_feeds_prompts_to_other_rows_in_its_pass(
    policy: Any, passes: list[int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In segments, up to the most that a step feeds; all of it before where no row runs. Before it
    also where a row that begins drafts more tokens than such a step can have.
    """
    monkeypatch.setattr("bass.engine.prefill.SEGMENT", 4)
    sizes = (30, 40), (2, 1), (5, 1), (4, 12), (25, 9)
    requests = [Request([i + 1] * n, n + new, i) for i, (n, new) in enumerate(sizes)]
    setup = Setup(SmallTable(), device, policy=policy, batch=3, graphs=False)
    made = setup.engine(requests)
    object.__setattr__(made.step, "shapes", StepShapes(segments=(1, 2), feeding=2))
    run, found_passes = replace(made), list[int]()
    prefill = run.step.prefill

    def counted(rows: Sequences, parts: list[Part]) -> None:
        found_passes.append(sum(p.last - p.first for p in parts))
        prefill(rows, parts)

    object.__setattr__(run.step, "prefill", counted)
    found = RunOutput(run)
    assert found_passes == passes
    assert [step.fed for step in found.steps if step.fed] == [7, 8, 8, 4]
    assert found.tokens == setup.outcome(requests).tokens


def test_samples_of_a_prompt_that_a_step_feeds_wait_for_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows end in one step, and the next two requests have one prompt."""
    monkeypatch.setattr("bass.engine.prefill.SEGMENT", 4)
    sizes = ((1, 9, 40), (2, 3, 5), (3, 3, 5), (4, 12, 9), (4, 12, 9))
    requests = [Request([t] * n, n + new, i) for i, (t, n, new) in enumerate(sizes)]
    setup = Setup(SmallLlama(), device, policy=Fixed(0), batch=3, graphs=False)
    made = setup.engine(requests)
    object.__setattr__(made.step, "shapes", StepShapes(segments=(1, 4)))
    found = RunOutput(replace(made))
    assert [step.fed for step in found.steps if step.fed] == [11]
    assert found.tokens == setup.outcome(requests).tokens


def test_a_policy_learns_how_many_requests_wait_and_run(device: torch.device) -> None:
    seen: list[tuple[int, int]] = []
    expected = np.ones(2, dtype=int)

    class Watching(OwnPast):
        def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
            seen.append((feedback.queued, feedback.active_rows))
            nonlocal expected
            assert feedback.lens is not None
            new = feedback.lens == 1  # the prompt of a request that has just begun
            assert (new | (feedback.lens == expected) | ~feedback.active).all()
            expected = feedback.lens + feedback.accepted + 1
            return super().update(state, feedback)

    requests = [Request([i + 1], (4, 5, 9, 9, 9)[i], i) for i in range(5)]
    run = Setup(SmallTable(), device, policy=Fixed(0), batch=2, graphs=False).engine(requests)
    RunOutput(replace(run, policy=Watching()))
    assert seen[0] == (3, 2)
    assert seen[-1] == (0, 1)
    assert {queued for queued, _ in seen} == {0, 1, 2, 3}
    assert expected.max() == 9
