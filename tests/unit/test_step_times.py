"""Step times of a policy that reads them: measured once, kept, and never decided by a run."""

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from jaxtyping import Int
from torch import Tensor

import bass
from bass.engine import step_times, threads
from bass.engine.assembly import Storage
from bass.engine.step_times import Seconds, StepTimes
from bass.interfaces import DraftTrim
from bass.policies import Auto, Fixed
from bass.records import CacheBudget, Drafted

# other tests take a formula
MEASURED, CAUGHT_UP, TOKEN = StepTimes.measured, StepTimes.caught_up, StepTimes.token


TIMES = (1.0, 1.1, 1.2, 1.3, 1.4)


@final
@dataclass(frozen=True)
class Spy(DraftTrim):
    """Keeps all, and notes the length of the draft and the cost that it is given."""

    reads_cost: ClassVar[bool] = True
    seen: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        assert drafted.cost is not None
        self.seen.append((drafted.tried.shape[1], float(drafted.cost)))
        return drafted.lengths


def generated(policy: Any, **options: Any) -> list[list[int]]:
    llm = bass.load(policy=policy, **options)
    result = llm.generate("def f(", 2, max_new_tokens=12, seed=3, temperature=0.8)
    return [one.token_ids for one in result.completions]


def test_times_are_measured_once_for_a_setting_and_read_from_disk_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = []

    def counted(self: StepTimes, engine: Any, drafter: int) -> list[float]:
        measured.append(MEASURED(self, engine, drafter))
        return measured[-1]

    monkeypatch.setenv("BASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(step_times, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(StepTimes, "measured", counted)
    monkeypatch.setattr(StepTimes, "caught_up", CAUGHT_UP)
    policy = Auto(max_length=4)
    first = generated(policy)
    assert generated(policy) == first, "the same table, the same lengths, the same tokens"
    [times] = measured
    assert len(times) == 5
    assert 0 < times[0] <= times[1] <= times[4]
    generated(policy, verifier="block")
    generated(Auto(max_length=4, times=(1, 2, 3, 4, 5)))
    generated(Fixed(2))
    assert len(measured) == 2, "another verifier, and neither given times nor a fixed length"
    files = [*(tmp_path / "cache").iterdir()]
    assert len(files) == 2
    assert all(json.loads(file.read_text("utf-8"))["catch_up"] > 0 for file in files)


def test_each_drafter_of_a_choice_has_times_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BASS_CACHE", str(tmp_path))
    monkeypatch.setattr(step_times, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(StepTimes, "measured", MEASURED)
    monkeypatch.setattr(StepTimes, "caught_up", CAUGHT_UP)
    steps, drafters = StepTimes.steps, list[int]()

    def noted(self: StepTimes, engine: Any, order: Any, drafter: int = 0) -> Any:
        drafters.append(drafter)
        return steps(self, engine, order, drafter)

    monkeypatch.setattr(StepTimes, "steps", noted)
    found = []
    for _ in range(2):
        llm = bass.load(policy=Auto(max_length=4), drafter="choice")
        llm.generate("def f(", 2, max_new_tokens=12)
        found.append(llm._engines.times.known)
    assert found[0] == found[1], "read from disk"
    assert drafters == [0, 1]
    [times] = found[0].values()
    (ngram, fed_nothing), (model, fed) = times.drafters
    assert ngram[0] == model[0]
    assert ngram[1] < model[1]  # though in the text there is nothing to find
    assert fed_nothing == 0 < fed


def test_the_cost_of_a_verified_token_is_measured_for_a_trim_that_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BASS_CACHE", str(tmp_path))
    measured = []

    def counted(self: StepTimes, engine: Any) -> float:
        measured.append(TOKEN(self, engine))
        return measured[-1]

    monkeypatch.setattr(StepTimes, "measured", MEASURED)
    monkeypatch.setattr(StepTimes, "token", counted)
    options: dict[str, Any] = {"num_speculative_tokens": 4}
    for trim in ("survival", "survival", {"class_path": "survival", "init_args": {"cost": 0.1}}):
        llm = bass.load(**options, trim=trim)
        llm.generate("def f(", 4, max_new_tokens=12)
    assert len(measured) == 1, "then read from disk, or given"
    assert measured[0] > 0
    [file] = tmp_path.iterdir()
    assert json.loads(file.read_text("utf-8"))["token"] == measured[0]


def test_a_cost_is_a_share_of_a_step_that_verifies_no_draft() -> None:
    """Of two drafters; no such step is quicker than one without drafts."""
    times = Seconds((((1.0, 1.5, 2.0), 0.1), ((1.0, 1.1, 1.2), 0.0)), 0.25)
    assert times.shares == [[0.25, 0.2, 0.25 / 1.5], [0.25, 0.25, 0.25]]


def test_a_trim_is_given_the_cost_of_its_drafter_and_length() -> None:
    """Drafters take turns; each of their steps costs 1 + 0.1 k, and 0.05 of it is a token."""
    spy = Spy()
    llm = bass.load(
        policy=Auto(max_length=4, times=TIMES, others=((TIMES, 0.1),)), drafter="choice", trim=spy
    )
    llm.generate(["def f(", "class A:"], max_new_tokens=24)
    assert spy.seen
    assert all(cost == pytest.approx(0.05 / (1 + 0.05 * k)) for k, cost in spy.seen)


def test_times_that_other_processes_disturb_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BASS_CACHE", str(tmp_path))
    monkeypatch.setattr(step_times, "ALONE", 2.0)
    with pytest.warns(RuntimeWarning, match="used the cores"):
        generated(Auto(max_length=4))
    assert not [*tmp_path.iterdir()]


def test_times_of_a_users_class_are_those_of_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source, sources = tmp_path / "own_verifier.py", []
    for more in ("", "# edited\n"):
        source.write_text(
            f"from bass.verifiers import Rejection\n\nclass Own(Rejection): ...\n{more}"
        )
        llm = bass.load(verifier="own_verifier:Own")
        sources.append(StepTimes(llm.models, llm.parts, False, 1).setting(1)["sources"])
    assert len(sources[0]) == 1
    assert sources[0] != sources[1]


def test_a_cache_that_cannot_be_written_costs_a_measurement_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BASS_CACHE", str(tmp_path / "file"))
    assert generated(Auto(max_length=2))


def test_lengths_without_a_time_lie_between_and_beyond_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine that takes three times as long from the middle on; 4 draft tokens take less
    than 2 here.
    """
    found = [(0, 5), (0, 1), (0, 1), (0, 1), (4, 4), (2, 9), (0, 3), (4, 12)]
    monkeypatch.setattr(StepTimes, "steps", lambda *_: iter(found))
    llm = bass.load(policy=Auto(max_length=6))
    storage = Storage(llm.models, llm.parts, CacheBudget.of(np.array([30])), 1, False)
    engine = storage.engine_for(storage.budget, 1)
    times = MEASURED(StepTimes(llm.models, llm.parts, False, 1), engine)
    assert times == pytest.approx([2.0, 9.0, 13.0, 13.0, 13.0, 13.75, 14.5])


@pytest.mark.parametrize(("taken", "warns"), [((1.0, 20.0), True), ((1.0, 0.6), False)])
def test_threads_that_wait_for_busy_cores_are_a_warning(
    taken: tuple[float, float], warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, now = {1: taken[0], 2: taken[1]}, [0.0]

    def clock() -> float:  # each operation takes half of two ticks
        now[0] += ticks[torch.get_num_threads()]
        return now[0]

    monkeypatch.setattr(threads.time, "perf_counter", clock)
    torch.set_num_threads(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads.warn_of_busy_cores()
    assert torch.get_num_threads() == 2
    assert [("20 times as long in 2 threads" in str(one.message)) for one in caught] == [
        True
    ] * warns
