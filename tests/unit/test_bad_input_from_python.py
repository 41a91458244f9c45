"""Bad input from Python: the same sentences, as exceptions."""

import json
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.sampling import Sampling
from unit.checkpoints import Pair
from unit.test_bad_input import Always, Fractional, Negative, NoMaximum, OverItsMaximum, WrongShape


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, pair.draft)


REQUESTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown option": ("x", {"temprature": 1.0}, "`temperature`"),
    "no prompts": ([], {}, "no prompt"),
    "empty prompt": ([""], {}, "Prompt 0 is empty"),
    "token id out of range": ([[1, 10**6]], {}, "1000000"),
    "limits that do not match the prompts": (
        ["a", "b"],
        {"max_new_tokens": [1, 2, 3]},
        "3 values for 2 prompts",
    ),
    "one limit too small": (["a", "b"], {"max_new_tokens": [1, 0]}, "max_new_tokens=0"),
    "truth for samples": ("a", {"num_return_sequences": True}, "num_return_sequences=True"),
    "nan temperature": ("a", {"temperature": math.nan}, "temperature=nan"),
    "infinite temperature": ("a", {"temperature": math.inf}, "temperature=inf"),
    "empty stop": ("a", {"stop": ["x", ""]}, "stop string is empty"),
    "nan time budget": ("a", {"time_budget": math.nan}, "time_budget=nan"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_from_python(llm: bass.LLM, case: str) -> None:
    prompts, options, word = REQUESTS[case]
    with pytest.raises(bass.BassError, match=re.escape(word)):
        llm.stream(prompts, **options)


# in a process of their own: here the annotations are checked too, and would refuse them first
WRONG_KINDS = {
    "llm.stream([[1.5]])": "1.5",
    "llm.stream([[1, 'a']])": "'a'",
    "llm.stream(b'def')": "bytes",
    "llm.stream(3)": "int",
    "llm.stream([None])": "NoneType",
    "llm.stream('a', max_new_tokens=1.5)": "max_new_tokens=1.5",
    "llm.stream('a', max_new_tokens=None)": "max_new_tokens=None",
    "llm.stream('a', num_return_sequences=1.5)": "num_return_sequences=1.5",
    "llm.stream('a', temperature='0.2')": "temperature='0.2'",
    "llm.stream('a', temperature=None)": "temperature=None",
    "llm.stream('a', top_k=1.5)": "top_k=1.5",
    "llm.stream('a', seed='1')": "seed='1'",
    "llm.stream('a', seed=0.5)": "seed=0.5",
    "llm.stream('a', stop=[1])": "stop=[1]",
    "llm.stream('a', time_budget='1')": "time_budget='1'",
    "llm.generate(llm.generate('a', max_new_tokens=1))": "`LLM.apply_chat_template` the token ids",
    "llm.chat('hello')": "a list of messages",
    "llm.chat([])": "a list of messages",
    "llm.chat([3])": "Message 0 is 3",
    "load(policy=3)": "DraftLengthPolicy",
    "load(cache=3)": "cache=3",
    "load(attention=3)": "AttentionBackend",
    "load(num_speculative_tokens=1.5)": "num_speculative_tokens=1.5",
    "load(max_batch_size=1.5)": "max_batch_size=1.5",
    "load(quantization=8)": "quantization=8",
}


def test_values_of_a_wrong_kind_from_python(pair: Pair) -> None:
    code = """
import functools, json, sys, bass
target, draft, *calls = sys.argv[1:]
load = functools.partial(bass.load, target, draft)
names = {"llm": load(), "load": load}
def said(call):
    try:
        eval(call, names)
    except bass.BassError as error:
        return str(error)
    except Exception as error:
        return f"not refused, but {error!r}"
    return "not refused"
print(json.dumps({call: said(call) for call in calls}))
"""
    command = [sys.executable, "-c", code, str(pair.target), str(pair.draft), *WRONG_KINDS]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wrong = {
        call: message
        for call, message in said.items()
        if WRONG_KINDS[call] not in message or message.startswith("not refused")
    }
    assert wrong == {}


LOADS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown option": ({"polcy": "bass"}, "`policy`"),
    "unknown policy": ({"policy": "baas"}, "`bass`"),
    "quantization": ({"quantization": "int7"}, "Unknown quantization `int7`"),
    "graphs": ({"cuda_graphs": True, "device": "cpu"}, "cuda_graphs=True"),
    "device of a number": ({"device": "cuda:99"}, "device='cuda:99'"),
    "another processor": ({"device": "cpu:99"}, "device='cpu:99'"),
    "dtype of torch": ({"dtype": "int8"}, "dtype `int8`"),
}


@pytest.mark.parametrize("case", LOADS)
def test_loads_from_python(pair: Pair, case: str) -> None:
    options, word = LOADS[case]
    with pytest.raises(bass.BassError, match=re.escape(word)):
        bass.load(pair.target, pair.draft, **options)


@pytest.mark.parametrize("policy", [WrongShape, OverItsMaximum, Negative, Fractional, NoMaximum])
def test_broken_policies_from_python(pair: Pair, policy: type[Always]) -> None:
    with pytest.raises(bass.BassError, match=policy.__name__):
        bass.load(pair.target, pair.draft, policy=policy).generate("a", max_new_tokens=4)


def test_a_refused_request_leaves_the_model_usable(llm: bass.LLM) -> None:
    before = llm.generate("def f(", max_new_tokens=4).completions[0].token_ids
    for prompts, options, _ in REQUESTS.values():
        with pytest.raises(bass.BassError):
            llm.stream(prompts, **options)
    assert llm.generate("def f(", max_new_tokens=4).completions[0].token_ids == before


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_integer_is_a_seed(llm: bass.LLM, seed: int) -> None:
    assert llm.generate("a", max_new_tokens=4, seed=seed).completions[0].token_ids


def test_arrays_and_tensors_of_token_ids_are_prompts(llm: bass.LLM) -> None:
    ids, options = [5, 6, 7], {"max_new_tokens": 4}
    expected = llm.generate([ids], **options).completions[0].token_ids
    for prompts in (
        ids,
        np.array(ids),
        np.array([ids]),
        [np.array(ids)],
        torch.tensor(ids),
        torch.tensor([ids]),
        [torch.tensor(ids)],
    ):
        assert [c.token_ids for c in llm.generate(prompts, **options).completions] == [expected]


def test_sampling_accepts_the_ends_of_its_ranges() -> None:
    Sampling(temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1)


@pytest.mark.parametrize("value", [10**10, 10**400], ids=["10 digits", "400 digits"])
def test_integers_that_no_register_holds_are_refused_from_python(llm: bass.LLM, value: int) -> None:
    for option in ("temperature", "top_p", "time_budget", "max_new_tokens", "top_k"):
        if value > 2**63 or option == "top_p":
            with pytest.raises(bass.BassError, match=option):
                llm.generate("def", **{option: value})
