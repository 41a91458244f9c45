"""What `generate` makes of prompts, limits and stop strings of any form."""

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bass
from unit.checkpoints import Pair

OPTIONS: dict[str, Any] = {
    "max_new_tokens": 6,
    "temperature": 1.0,
    "top_p": 1.0,
    "ignore_eos": True,
}
PROMPTS = ["def f(", "for", [5, 6], "a"]


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, pair.draft, num_speculative_tokens=3)


@pytest.fixture(scope="module")
def samples(llm: bass.LLM) -> list[list[list[int]]]:
    """Eight samples of each prompt."""
    return [
        [c.token_ids for c in llm.generate(prompt, num_return_sequences=8, **OPTIONS).completions]
        for prompt in PROMPTS
    ]


@settings(max_examples=10)
@given(
    order=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=8), n=st.integers(1, 2)
)
def test_a_prompt_that_a_call_repeats_goes_on_with_its_samples(
    llm: bass.LLM, samples: list[list[list[int]]], order: list[int], n: int
) -> None:
    """Occurrence j has samples j*n to j*n + n-1, whatever other prompts stand before and
    between.
    """
    order = [prompt for i, prompt in enumerate(order) if order[:i].count(prompt) * n + n <= 8]
    result = llm.generate([PROMPTS[prompt] for prompt in order], num_return_sequences=n, **OPTIONS)
    seen = [
        order[:place].count(prompt) * n + s for place, prompt in enumerate(order) for s in range(n)
    ]
    assert [(c.prompt_index, c.sample_index) for c in result.completions] == list(
        zip(sorted([*range(len(order))] * n), seen, strict=True)
    )
    assert [c.token_ids for c in result.completions] == [
        samples[order[c.prompt_index]][c.sample_index] for c in result.completions
    ]


def test_repeated_prompts_are_different_samples(
    llm: bass.LLM, samples: list[list[list[int]]]
) -> None:
    assert len({tuple(own) for own in samples[0]}) > 6
    ids = llm.models.tokenizer.encode("def f(")  # type: ignore[union-attr]
    mixed = llm.generate(
        ["def f(", ids, {"prompt": "def f("}, {"prompt_token_ids": np.array(ids)}], **OPTIONS
    )
    assert [c.token_ids for c in mixed.completions] == samples[0][:4]
    indices = [(c.prompt_index, c.sample_index) for c in mixed.completions]
    assert indices == [(i, i) for i in range(4)]


SAME = {  # each is the one prompt [5, 6]
    "a list": [5, 6],
    "a tuple": (5, 6),
    "a generator": lambda: (token for token in (5, 6)),
    "a range": range(5, 7),
    "an array": np.array([5, 6], dtype=np.uint16),
    "a tensor": torch.tensor([[5, 6]]),
    "a mapping": {"token_ids": [5, 6]},
    "a mapping of an array": UserDict({"prompt_token_ids": np.array([5, 6])}),
    "a list of a mapping": [{"prompt_token_ids": (5, 6)}],
    "a generator of a mapping": lambda: ({"prompt_token_ids": [5, 6]} for _ in range(1)),
}


@pytest.mark.parametrize("form", SAME)
def test_forms_of_token_ids_are_the_same_prompt(
    llm: bass.LLM, samples: list[list[list[int]]], form: str
) -> None:
    given = SAME[form]
    assert [
        c.token_ids
        for c in llm.generate(given() if callable(given) else given, **OPTIONS).completions
    ] == samples[2][:1]


@pytest.mark.usefixtures("unchecked")
def test_stop_strings_may_come_in_anything_that_holds_strings(llm: bass.LLM) -> None:
    whole = llm.generate("for", **OPTIONS).completions[0].text
    assert whole
    stop = whole[2]
    cut = whole[: whole.index(stop)]
    for form in (stop, np.str_(stop), [stop], (stop, "zz"), {stop}, iter([stop]), {stop: 1}.keys()):
        assert llm.generate("for", stop=form, **OPTIONS).completions[0].text == cut
    for form in (None, (), [], iter(())):
        assert llm.generate("for", stop=form, **OPTIONS).completions[0].text == whole
