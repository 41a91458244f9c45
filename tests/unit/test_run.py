"""How runs end: the time budget, by a clock that moves one second per step; the context of the
pair; the checkpoint's own end tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, final

import pytest
from jaxtyping import Float
from torch import Tensor

import bass
from bass.interfaces import Verifier
from bass.records import Draft, Noise, Verdict
from bass.verifiers import Rejection
from unit.checkpoints import Pair


@dataclass
class Clock:
    now: float = 100.0  # runs do not begin at zero

    def __call__(self) -> float:
        return self.now


@final
@dataclass(frozen=True)
class Slow(Verifier):
    """Rejection sampling that takes a second."""

    clock: Clock
    lossless: ClassVar[bool] = True

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        self.clock.now += 1.0
        return Rejection()(draft, target_probs, noise)


@pytest.fixture
def slow(silent_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> bass.LLM:
    """Autoregressive decoding, one row, a second per token."""
    clock = Clock()
    monkeypatch.setattr("bass.engine.run.time", SimpleNamespace(perf_counter=clock))
    return bass.load(
        silent_pair.target,
        num_speculative_tokens=0,
        verifier=Slow(clock),
        max_batch_size=1,
        device="cpu",
    )


@pytest.mark.parametrize(
    ("budget", "steps"), [(0.5, 1), (2.5, 3), (4.5, 5), (11.5, 12), (12.5, 12)]
)
def test_the_time_budget_ends_a_run_with_the_first_step_that_ends_after_it(
    slow: bass.LLM, budget: float, steps: int
) -> None:
    result = slow.generate([3, 4, 5], max_new_tokens=12, ignore_eos=True, time_budget=budget)
    [completion] = result.completions
    assert len(result.trace) == len(completion.token_ids) == steps
    assert completion.finish_reason == ("length" if steps == 12 else "time")


def test_the_time_budget_counts_from_the_beginning_of_the_run_not_of_a_request(
    slow: bass.LLM,
) -> None:
    result = slow.generate([[3], [4], [5]], max_new_tokens=3, ignore_eos=True, time_budget=4.5)
    assert [len(c.token_ids) for c in result.completions] == [3, 2, 0]
    assert [c.finish_reason for c in result.completions] == ["length", "time", "time"]


def test_a_trace_tells_how_long_each_step_took_and_when_it_ended(slow: bass.LLM) -> None:
    trace = slow.generate([3, 4, 5], max_new_tokens=4, ignore_eos=True).trace
    assert [s.seconds for s in trace] == [1.0] * 4
    assert [s.host_seconds for s in trace] == [0.0] * 4
    assert [s.at for s in trace] == [1.0, 2.0, 3.0, 4.0]


def test_a_completions_seconds_count_from_the_end_of_its_own_prefill(slow: bass.LLM) -> None:
    result = slow.generate([[3], [4]], max_new_tokens=[2, 5], ignore_eos=True)
    assert [c.seconds for c in result.completions] == [2.0, 5.0]
    assert (result.stats.first, result.stats.last, result.stats.all) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("k", [0, 3])
def test_an_end_token_that_only_the_generation_config_names_ends_a_row(
    silent_pair: Pair, tmp_path: Path, k: int, as_list: bool
) -> None:
    own = silent_pair.copy(tmp_path)
    config = json.loads((own.target / "config.json").read_text(encoding="utf-8"))
    del config["eos_token_id"]
    (own.target / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def tokens() -> tuple[list[int], str]:
        llm = bass.load(own.target, own.draft, num_speculative_tokens=k, device="cpu")
        [completion] = llm.generate(
            [3, 4, 5], max_new_tokens=20, temperature=2.0, top_p=1.0
        ).completions
        return completion.token_ids, completion.finish_reason

    endless, reason = tokens()
    assert (len(endless), reason) == (20, "length")
    last = next(i for i in range(5, 20) if endless[i] not in endless[:i])
    named = [endless[last]] if as_list else endless[last]
    (own.target / "generation_config.json").write_text(
        json.dumps({"eos_token_id": named}), encoding="utf-8"
    )
    assert tokens() == (endless[: last + 1], "eos")
