"""The edges of the contracts: parts that keep theirs loosely, errors that must stay errors,
settings that would be ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bass
from bass.errors import CheckpointError, PolicyError, StrategyError
from bass.interfaces import Drafter, DraftLengthPolicy
from bass.records import Draft
from unit.checkpoints import Pair

PROMPTS = [[5, 6, 7], [9], [30, 2, 4, 8]]


@final
@dataclass(frozen=True)
class Careless(Drafter):
    """Drafts more than it was asked for, and leaves numbers that are no tokens wherever nobody
    should look.
    """

    def propose(
        self, sequences: Any, lengths: torch.Tensor, k: int, noise: Any, span: int
    ) -> Draft:
        tokens = torch.full((len(lengths), k), 10**6, device=lengths.device)
        asked = torch.arange(k, device=lengths.device) < lengths[:, None]
        return Draft(torch.where(asked, 3, tokens), None, torch.full_like(lengths, k + 5))


@final
@dataclass(frozen=True)
class Mixed(DraftLengthPolicy[int]):
    """A different length for each row, and none for the first."""

    max_length: int = 3

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.arange(state) % 4

    def update(self, state: int, feedback: Any) -> int:
        return state


@final
@dataclass(frozen=True)
class Failing(DraftLengthPolicy[int]):
    """Breaks its contract at the third step, in a way of one's choice."""

    answer: ClassVar[Any] = [1.5]
    max_length: int = 3

    def init(self, batch_size: int) -> int:
        return 0

    def lengths(self, state: int) -> Any:
        return np.ones(1, dtype=np.int64) if state < 2 else self.answer

    def update(self, state: int, feedback: Any) -> int:
        return state + 1


def tokens_of(result: bass.Result) -> list[list[int]]:
    return [c.token_ids for c in result.completions]


@pytest.mark.parametrize("cache", ["padded", "split"])
def test_what_a_drafter_leaves_beyond_the_lengths_it_was_asked_for_is_not_looked_at(
    pair: Pair, cache: str
) -> None:
    options: dict[str, Any] = {"max_new_tokens": [3, 20, 7], "temperature": 0, "ignore_eos": True}
    plain = bass.load(pair.target, num_speculative_tokens=0).generate(PROMPTS, **options)
    llm = bass.load(pair.target, policy=Mixed(), drafter=Careless(), cache=cache, cuda_graphs=False)
    result = llm.generate(PROMPTS, **options)
    assert tokens_of(result) == tokens_of(plain)
    assert all((step.drafted <= [0, 1, 2]).all() for step in result.trace)


def test_an_error_stays_an_error_when_the_result_is_asked_for_again(pair: Pair) -> None:
    llm = bass.load(pair.target, pair.draft, policy=Failing(), cuda_graphs=False)
    generation = llm.stream([5, 6], max_new_tokens=20, ignore_eos=True)
    for _ in range(2):
        with pytest.raises(PolicyError, match="lengths"):
            generation.result()
    assert {c.finish_reason for c in generation.result(interrupted=True).completions} == {
        "interrupted"
    }


@pytest.mark.parametrize("k", [0, 2])
def test_a_penalty_beyond_the_dtype_is_named(pair: Pair, k: int) -> None:
    llm = bass.load(pair.target, pair.draft, dtype="float16", num_speculative_tokens=k)
    with pytest.raises(StrategyError, match=r"repetition_penalty`.*float16"):
        llm.generate([5, 6], max_new_tokens=4, repetition_penalty=1e-6)


@pytest.mark.parametrize("temperature", [0, 0.2, 1.0])
def test_weights_that_are_not_finite_are_told_and_not_decoded(
    pair: Pair, tmp_path: Path, temperature: float
) -> None:
    folder = pair.copy(tmp_path).target
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="not finite"):
        bass.load(folder, num_speculative_tokens=0).generate(
            [5], max_new_tokens=5, temperature=temperature
        )
