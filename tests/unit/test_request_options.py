"""The options of a request: one for all prompts or one for each, penalties, and what ends a
sample.
"""

from typing import Any

import pytest

import bass
from unit.checkpoints import Pair

A, B = [3, 5, 7, 11], [2, 9, 4]
SHORT = {"max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, pair.draft, num_speculative_tokens=3)


def tokens(llm: bass.LLM, prompts: Any, **options: Any) -> list[list[int]]:
    return [one.token_ids for one in llm.generate(prompts, **SHORT | options).completions]


def test_prompts_of_one_call_may_differ_in_their_options(llm: bass.LLM) -> None:
    """Each gets what it gets in a call of its own."""
    each: dict[str, list[Any]] = {
        "temperature": [0, 1.3],
        "top_k": [0, 8],
        "top_p": [1.0, 0.9],
        "min_p": [0, 0.01],
        "repetition_penalty": [1.0, 1.2],
        "presence_penalty": [0, 0.5],
        "frequency_penalty": [0.7, 0],
        "max_new_tokens": [5, 9],
    }
    alone = [
        tokens(llm, [prompt], **{name: values[i] for name, values in each.items()})[0]
        for i, prompt in enumerate((A, B))
    ]
    assert tokens(llm, [A, B], **each) == alone
    assert [len(one) for one in alone] == [5, 9]


def test_a_penalty_of_generated_tokens_leaves_those_of_the_prompt(llm: bass.LLM) -> None:
    """Greedy, with the largest penalty there is: what a token earns less, an equal prompt of an
    earlier token does not.
    """
    plain = tokens(llm, [A], temperature=0)[0]
    assert len(set(plain)) < len(plain)
    less = tokens(llm, [A], temperature=0, frequency_penalty=2.0, presence_penalty=2.0)[0]
    assert len(set(less)) > len(set(plain))
    assert tokens(llm, [A + plain[:1]], temperature=0, presence_penalty=2.0)[0][0] == plain[1]


def test_a_stop_token_ends_a_sample_and_is_its_last_token(llm: bass.LLM) -> None:
    plain = tokens(llm, [A], temperature=0)[0]
    stop = plain[4]
    done = llm.generate([A], **SHORT, temperature=0, stop_token_ids=[stop, 1]).completions[0]
    assert done.token_ids == plain[: plain.index(stop) + 1]
    assert (done.finish_reason, done.finished) == ("stop", True)
    once = tokens(llm, [A], temperature=0, stop_token_ids=iter([stop, 1]))[0]
    assert once == done.token_ids
    late = tokens(llm, [A], temperature=0, stop_token_ids=[stop], min_new_tokens=9)[0]
    assert stop not in late[:8]


def test_an_end_of_sequence_and_a_stop_token_have_reasons_of_their_own(pair: Pair) -> None:
    llm = bass.load(pair.target, num_speculative_tokens=0)
    plain = tokens(llm, [A], temperature=0)[0]
    llm.models.eos[:] = [plain[3]]
    first = plain.index(plain[3]) + 1
    for options, reason in (
        ({}, "eos"),
        ({"stop_token_ids": [plain[3]]}, "eos"),
        ({"stop_token_ids": [plain[3]], "ignore_eos": True}, "stop"),
    ):
        done = llm.generate([A], temperature=0, max_new_tokens=12, **options).completions[0]
        assert (done.finish_reason, done.token_ids) == (reason, plain[:first])
    most = llm.generate([A], temperature=0, max_new_tokens=12, min_new_tokens=12).completions[0]
    assert (most.finish_reason, len(most.token_ids)) == ("length", 12)
