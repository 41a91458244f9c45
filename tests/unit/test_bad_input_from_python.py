"""Bad input from Python is a `BassError` that names the option; other forms of good input work."""

import math
import re
from typing import Any

import numpy as np
import pytest

import bass
from unit.checkpoints import Pair
from unit.test_bad_input import Always, NoMaximum, OverItsMaximum, WrongShape

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, pair.draft)


# prompts, options, and what the error names
REQUESTS: list[tuple[Any, dict[str, Any], str]] = [
    # prompts
    ([], {}, "no prompt"),
    ([""], {}, "Prompt 0 is empty"),
    ({"prompt_token_ids": []}, {}, "Prompt 0 is empty"),
    ([[1, 10**6]], {}, "1000000"),
    ([[1.5]], {}, "1.5"),
    (b"def", {}, "bytes"),
    (3, {}, "int"),
    ([None], {}, "NoneType"),
    ({"a", "b"}, {}, "of set"),
    ([[["a"]]], {}, "['a']"),
    ({"prompt": "a", "prompt_token_ids": [5]}, {}, "and nothing else"),
    (["a", {"input_ids": [5], "attention_mask": [1]}], {}, "'input_ids'"),
    # options of all prompts
    ("x", {"temprature": 1.0}, "`temperature`"),
    ("a", {"min_tokens": 3}, "`min_new_tokens`"),
    ("a", {"temperature": math.nan}, "temperature=nan"),
    ("a", {"temperature": "0.2"}, "temperature='0.2'"),
    ("a", {"temperature": None}, "temperature=None"),
    ("a", {"top_p": 7}, "top_p=7"),
    ("a", {"top_k": 1.5}, "top_k=1.5"),
    ("a", {"presence_penalty": 2.5}, "presence_penalty=2.5"),
    ("a", {"max_new_tokens": 1.5}, "max_new_tokens=1.5"),
    ("a", {"max_new_tokens": {0: 5}}, "max_new_tokens"),
    ("a", {"min_new_tokens": 13, "max_new_tokens": 12}, "min_new_tokens=13"),
    ("a", {"num_return_sequences": True}, "num_return_sequences=True"),
    ("a", {"seed": 0.5}, "seed=0.5"),
    ("a", {"stop": ["x", ""]}, "none of them empty"),
    ("a", {"stop": [1]}, "stop=[1]"),
    ("a", {"stop_token_ids": [10**9]}, "stop_token_ids"),
    ("a", {"ignore_eos": [True, False]}, "ignore_eos"),
    ("a", {"time_budget": math.nan}, "time_budget=nan"),
    # an option of each prompt
    (["a", "b"], {"max_new_tokens": [1, 2, 3]}, "3 values for 2 prompts"),
    (["a", "b"], {"max_new_tokens": [1, 0]}, "max_new_tokens=0"),
    (["a", "b"], {"temperature": [0.5, -1]}, "Prompt 1: `temperature=-1`"),
    (["a", "b"], {"top_k": np.array([0, -3])}, "Prompt 1: `top_k=-3`"),
]


@pytest.mark.parametrize(("prompts", "options", "words"), REQUESTS)
def test_requests(llm: bass.LLM, prompts: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(bass.BassError, match=re.escape(words)):
        llm.stream(prompts, **options)


LOADS: list[tuple[dict[str, Any], str]] = [
    ({"polcy": "bass"}, "`policy`"),
    ({"speculative_model": "x"}, "`draft`"),
    ({"temperature": 0.8}, "`temperature`"),
    ({"policy": "baas"}, "`bass`"),
    ({"policy": 3}, "policy=3"),
    ({"cache": int}, "cache"),
    ({"attention": 3}, "attention=3"),
    ({"quantization": "int7"}, "`int7`"),
    ({"quantization": 8}, "quantization=8"),
    ({"cuda_graphs": True, "device": "cpu"}, "cuda_graphs=True"),
    ({"device": "cuda:99"}, "device='cuda:99'"),
    ({"dtype": "int8"}, "`int8`"),
    ({"num_speculative_tokens": 1.5}, "num_speculative_tokens=1.5"),
    ({"policy": "bass", "num_speculative_tokens": 4}, "contradicts"),
    ({"drafter": "ngram", "stop_rule": "entropy"}, "would not be used"),
    ({"drafter": "ngram"}, "would not be used: `Ngram` runs no draft model"),
    ({"load_format": "dummy", "lora": "somewhere"}, "random weights take no adapter"),
    ({"drafter": "none"}, "Unknown drafter `none`"),
]


@pytest.mark.parametrize(("options", "words"), LOADS)
def test_loads(pair: Pair, options: dict[str, Any], words: str) -> None:
    with pytest.raises(bass.BassError, match=re.escape(words)):
        bass.load(pair.target, pair.draft, **options)


@pytest.mark.parametrize("messages", ["hello", [], [3]], ids=str)
def test_conversations(llm: bass.LLM, messages: Any) -> None:
    with pytest.raises(bass.BassError):
        llm.chat(messages)


@pytest.mark.parametrize("policy", [WrongShape, OverItsMaximum, NoMaximum])
def test_broken_policies(pair: Pair, policy: type[Always]) -> None:
    with pytest.raises(bass.BassError, match=policy.__name__):
        bass.load(pair.target, pair.draft, policy=policy).generate("a", max_new_tokens=4)


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_integer_is_a_seed(llm: bass.LLM, seed: int) -> None:
    assert llm.generate("a", max_new_tokens=4, seed=seed).completions[0].token_ids
