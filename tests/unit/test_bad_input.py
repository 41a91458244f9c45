"""Every bad input ends in one sentence and exit status 2: no traceback, nothing on standard
output.
"""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.interfaces import DraftLengthPolicy
from bass.records import Feedback
from bass.sampling import Sampling
from unit.checkpoints import Pair, Said, byte_tokenizer, write_checkpoint

Command = Callable[..., Said]


class Always(DraftLengthPolicy[int]):
    """A policy to be broken: the same answer in every step."""

    max_length = 4
    answer: Any = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, 2) if self.answer is None else self.answer

    def update(self, state: int, feedback: Feedback) -> int:
        return state


class WrongShape(Always):
    answer = np.array([1, 2, 3])


class OverItsMaximum(Always):
    answer = np.array([5])


class Negative(Always):
    answer = np.array([-1])


class Fractional(Always):
    answer = np.array([1.5])


class NoMaximum(Always):
    answer = None
    max_length = None  # pyright: ignore[reportAssignmentType]


class Incomplete(DraftLengthPolicy[int]):
    max_length = 4


class NoPolicy:
    pass


def refuses(said: Said, *words: str) -> None:
    """One line on stderr that starts with `bass:

    `, holds `words` and ends as a sentence; status 2; nothing on stdout.
    """
    assert said.status == 2, said
    assert said.out == ""
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err


OPTIONS = {
    "unknown policy": (["--policy", "baas"], "Unknown policy `baas`", "`bass`", "fixed"),
    "policy without a value": (["--policy"], "`--policy` lacks its value", "bass", "fixed"),
    "policy followed by an option": (["--policy", "--json"], "`--policy` lacks its value"),
    "policy of no module": (["--policy", "nowhere:Policy"], "nowhere", "package.module:Class"),
    "policy that its module lacks": (["--policy", "unit.test_bad_input:Nothing"], "Nothing"),
    "class that is no policy": (["--policy", "unit.test_bad_input:NoPolicy"], "DraftLengthPolicy"),
    "incomplete policy": (["--policy", "unit.test_bad_input:Incomplete"], "Incomplete", "lengths"),
    "policy without a maximum": (
        ["--policy", "unit.test_bad_input:NoMaximum"],
        "NoMaximum",
        "max_length",
    ),
    "policy of a wrong shape": (
        ["--policy", "unit.test_bad_input:WrongShape"],
        "WrongShape",
        "[3]",
        "[1]",
    ),
    "policy over its maximum": (
        ["--policy", "unit.test_bad_input:OverItsMaximum"],
        "5",
        "max_length=4",
    ),
    "policy below zero": (["--policy", "unit.test_bad_input:Negative"], "-1"),
    "policy of fractions": (["--policy", "unit.test_bad_input:Fractional"], "float64", "integers"),
    "policy parameter out of range": (["--policy.start", "99"], "start=99", "max_length=32"),
    "policy parameter of a wrong kind": (["--policy.start", "x"], "policy.start='x'", "integer"),
    "policy parameter that does not exist": (
        ["--policy.stort", "3"],
        "Unknown parameter of policy `BatchAdaptive` `stort`",
        "`start`",
    ),
    "class path that is no JSON": (["--policy", "{class_path: x"], "class_path"),
    "class path without a class": (["--policy", '{"init_args": {}}'], "class_path"),
    "class path with an unknown key": (
        ["--policy", '{"class_path": "fixed", "args": {}}'],
        "class_path",
    ),
    "unknown cache": (["--cache", "splt"], "Unknown cache `splt`", "`split`"),
    "unknown backend": (["--attention", "sdp"], "Unknown attention `sdp`", "`sdpa`"),
    "unknown verifier": (["--verifier", "reject"], "Unknown verifier `reject`", "`rejection`"),
    "unknown drafter": (["--drafter", "modle"], "Unknown drafter `modle`", "`model`"),
    "cache and backend that don't pair": (
        ["--cache", "padded", "--attention", "per-row"],
        "Cannot pair `PerRow` with `PaddedCache`",
        "SDPA",
    ),
    "unknown device": (["--device", "gpu"], "device='gpu'"),
    "graphs that are neither on nor off": (
        ["--cuda_graphs", "maybe"],
        "--cuda_graphs maybe",
        "'auto' or true or false",
    ),
    "graphs on a CPU": (
        ["--cuda_graphs", "true", "--device", "cpu"],
        "cuda_graphs=True",
        "CUDA device",
    ),
    "unknown dtype": (["--dtype", "float23"], "Unknown dtype `float23`", "`float32`"),
    "negative temperature": (["--temperature", "-0.1"], "temperature=-0.1"),
    "temperature that is not a number": (["--temperature", "nan"], "temperature"),
    "temperature of .nan": (["--temperature", ".nan"], "temperature"),
    "infinite temperature": (["--temperature", ".inf"], "temperature=inf"),
    "huge temperature": (["--temperature", "1e400"], "temperature=inf"),
    "temperature in words": (["--temperature", "hot"], "`--temperature hot`", "a number"),
    "top_p of zero": (["--top_p", "0"], "top_p=0"),
    "top_p above one": (["--top_p", "1.1"], "top_p=1.1"),
    "top_p of .nan": (["--top_p", ".nan"], "top_p=nan"),
    "negative top_k": (["--top_k", "-1"], "top_k=-1"),
    "fractional top_k": (["--top_k", "1.5"], "--top_k 1.5", "integer"),
    "min_p of one": (["--min_p", "1"], "min_p=1"),
    "min_p of .nan": (["--min_p", ".nan"], "min_p=nan"),
    "repetition_penalty of zero": (["--repetition_penalty", "0"], "repetition_penalty=0"),
    "infinite repetition_penalty": (["--repetition_penalty", ".inf"], "repetition_penalty=inf"),
    "no samples": (["-n", "0"], "num_return_sequences=0"),
    "negative samples": (["-n", "-3"], "num_return_sequences=-3"),
    "more samples than memory holds": (["-n", "10000000000"], "num_return_sequences=10000000000"),
    "samples without a value": (["-n"], "lacks its value"),
    "no new tokens": (["--max_new_tokens", "0"], "max_new_tokens=0"),
    "more new tokens than the context holds": (
        ["--max_new_tokens", "64"],
        "context of 64",
        "lower",
    ),
    "max_new_tokens as a list": (["--max_new_tokens", "[3]"], "max_new_tokens", "integer"),
    "no rows": (["--max_batch_size", "0"], "max_batch_size=0"),
    "empty stop string": (["--stop", ""], "stop string is empty"),
    "time budget of zero": (["--time_budget", "0"], "time_budget=0"),
    "time budget of .nan": (["--time_budget", ".nan"], "time_budget=nan"),
    "infinite time budget": (["--time_budget", ".inf"], "time_budget=inf"),
    "fractional seed": (["--seed", "0.5"], "--seed 0.5", "integer"),
    "negative draft length": (["--num_speculative_tokens", "-1"], "-1"),
    "two names for the policy": (
        ["--num_speculative_tokens", "2", "--policy", "bass"],
        "num_speculative_tokens",
        "contradicts",
    ),
    "option that does not exist": (
        ["--temprature", "1"],
        "Unknown option `--temprature`",
        "`--temperature`",
    ),
    "an option of vLLM": (
        ["--max-tokens", "8"],
        "Unknown option `--max_tokens`: give `--max_new_tokens` (most new tokens per sample).",
    ),
    "number of samples of vLLM": (["--n", "8"], "Unknown option `--n`: give `--num_return_seq"),
    "a flag of transformers": (["--do_sample"], "`--do_sample`: give `--temperature` (0 is gr"),
    "option that resembles nothing": (["--frobnicate"], "Unknown option `--frobnicate`", "--help"),
    "abbreviated option": (["--temp", "1"], "Unknown option `--temp`"),
    "option that takes no value": (["--json=yes"], "--json"),
    "two sources of prompts": (["--example"], "a prompt and `--example`"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(bass_command: Command, pair: Pair, case: str) -> None:
    options, *words = OPTIONS[case]
    refuses(bass_command("generate", *pair.options, "def f(", *options), *words)


PROMPTS = {
    "empty prompt": ([""], "Prompt 0 is empty"),
    "second prompt empty": (["a", ""], "Prompt 1 is empty"),
    "prompt longer than the context": (["x = 1\n" * 100], "context of 64", "shorten"),
    "token id out of range": (["--token_ids", "[1,999]"], "999", "0 to"),
    "negative token id": (["--token_ids", "[-1]"], "-1"),
    "no token ids": (["--token_ids", "[]"], "empty"),
    "token ids that are none": (["--token_ids", "[1,x]"], "--token_ids", "integer"),
    "token ids without brackets": (["--token_ids", "7"], "--token_ids", "list"),
    "missing file": (
        ["--file", "/nonexistent/prompt.txt"],
        "/nonexistent/prompt.txt",
        "No such file",
    ),
    "directory as a file": (["--file", "/"], "it is a folder"),
    "file name with a zero byte": (["--file", "a\0b"], "cannot be read"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(bass_command: Command, pair: Pair, case: str) -> None:
    arguments, *words = PROMPTS[case]
    refuses(bass_command("generate", *pair.options, *arguments), *words)


def test_a_file_that_is_no_text(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(b"def \xff\xfe")
    refuses(
        bass_command("generate", *pair.options, "--file", str(tmp_path / "prompt")),
        "not UTF-8",
        "byte 4",
    )


def test_an_empty_file(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "prompt").touch()
    refuses(bass_command("generate", *pair.options, "--file", str(tmp_path / "prompt")), "empty")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "prompt").touch(mode=0)
    refuses(
        bass_command("generate", *pair.options, "--file", str(tmp_path / "prompt")),
        "Permission denied",
    )


def test_text_without_a_tokenizer(bass_command: Command, silent_pair: Pair) -> None:
    refuses(bass_command("generate", *silent_pair.options, "def f("), "no tokenizer", "token ids")
    refuses(
        bass_command("generate", *silent_pair.options, "--token_ids", "[1]", "--stop", "x"),
        "`stop` needs text",
    )


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def noise_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)


def folder_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = {
            k: v for k, v in (json.loads(path.read_text()) | changes).items() if v != "DELETED"
        }
        path.write_text(json.dumps(config))

    return edit


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def rename(name: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).rename(folder / new)


def index(places: dict[str, str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    return edit


DAMAGE: dict[str, tuple[Any, ...]] = {
    "no config.json": (remove("config.json"), "no config.json"),
    "config.json that is no JSON": (write("config.json", "{"), "config.json", "JSON"),
    "config.json that is no object": (write("config.json", "[]"), "config.json", "JSON"),
    "config.json of another family": (edit_config(model_type="mamba"), "mamba", "llama"),
    "config.json without a field": (edit_config(hidden_size="DELETED"), "hidden_size"),
    "config.json with a field of a wrong kind": (edit_config(hidden_size="wide"), "config.json"),
    "config.json with a negative size": (edit_config(num_hidden_layers=-1), "config.json"),
    "config.json with heads that do not divide": (
        edit_config(num_key_value_heads=3),
        "config.json",
    ),
    "config.json with an eos that is no token": (edit_config(eos_token_id="stop"), "eos_token_id"),
    "config.json of other weights": (edit_config(intermediate_size=48), "do not belong together"),
    "config.json with more layers than the weights": (
        edit_config(num_hidden_layers=5),
        "missing",
        "do not belong together",
    ),
    "config.json with fewer layers than the weights": (
        edit_config(num_hidden_layers=1),
        "unexpected",
        "do not belong together",
    ),
    "config.json of a billion layers": (
        edit_config(num_hidden_layers=10**9),
        "do not belong together",
    ),
    "weights in a pickle": (
        rename("model.safetensors", "pytorch_model.bin"),
        "convert them with safetensors",
    ),
    "weights as GGUF": (rename("model.safetensors", "model.gguf"), "GGUF"),
    "an index that leaves the folder": (
        index({"x": "../target/model.safetensors"}),
        "model.safetensors.index.json",
    ),
    "an index without its files": (
        index({"x": "model-00001-of-00001.safetensors"}),
        "lacks 1 of the 1 files",
    ),
    "no weights": (remove("model.safetensors"), "no model.safetensors"),
    "truncated weights": (cut_weights, "model.safetensors", "damaged or truncated"),
    "weights cut in the header": (cut_header, "model.safetensors", "damaged or truncated"),
    "empty weights": (empty_weights, "model.safetensors", "damaged or truncated"),
    "corrupt weights": (noise_for_weights, "model.safetensors", "damaged or truncated"),
    "a folder in the weights' place": (folder_for_weights, "model.safetensors"),
    "corrupt tokenizer": (
        write("tokenizer.json", "{}"),
        "tokenizer.json",
        "not a readable tokenizer",
    ),
    "corrupt generation_config.json": (
        write("generation_config.json", "{"),
        "generation_config.json",
        "JSON",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_target(bass_command: Command, pair: Pair, tmp_path: Path, case: str) -> None:
    damage, *words = DAMAGE[case]
    own = pair.copy(tmp_path)
    damage(own.target)
    refuses(bass_command("generate", *own.options, "def f("), *words)
    refuses(bass_command("info", str(own.target)), *words)


@pytest.mark.parametrize(
    "case", [c for c in DAMAGE if not re.search("generation_config|eos|fewer", c)]
)
def test_damaged_draft(bass_command: Command, pair: Pair, tmp_path: Path, case: str) -> None:
    damage, *_ = DAMAGE[case]
    own = pair.copy(tmp_path)
    damage(own.draft)
    refuses(
        bass_command("generate", *own.options, "def f("),
        str(own.draft) if case != "config.json of another family" else "",
    )


def test_missing_folders(bass_command: Command, pair: Pair) -> None:
    refuses(
        bass_command("generate", "--target", "/nonexistent", "--draft", str(pair.draft), "x"),
        "`/nonexistent`",
    )
    refuses(
        bass_command("generate", "--target", str(pair.target), "--draft", "/nonexistent", "x"),
        "`/nonexistent`",
    )
    refuses(
        bass_command("generate", "--target", str(pair.target), "x"),
        "needs a draft",
        "num_speculative_tokens=0",
    )
    alone = ["--num_speculative_tokens", "0", "x"]
    refuses(
        bass_command("generate", "--target", str(pair.target / "config.json"), *alone),
        "No checkpoint folder",
    )
    refuses(bass_command("info", "/nonexistent"), "`/nonexistent`")
    refuses(bass_command("info"), "checkpoint")


def test_a_draft_with_another_vocabulary(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "draft", None, 16, 1, 77)
    arguments = ["--target", str(pair.target), "--draft", str(other)]
    refuses(bass_command("generate", *arguments, "x"), "77", "vocabular")
    said = bass_command("info", str(pair.target), "--draft", str(other))
    assert (said.status, said.err) == (1, "")
    assert (
        f"`{other}` cannot draft for `{pair.target}`. Target and draft have vocabularies of"
        in said.out
    )


def test_a_draft_with_another_tokenizer(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    own = pair.copy(tmp_path)
    tokens = json.loads((own.draft / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (own.draft / "tokenizer.json").write_text(json.dumps(tokens))
    refuses(bass_command("generate", *own.options, "x"), "different tokenizers", "'a'")


def test_a_tokenizer_with_ids_beyond_the_vocabulary(bass_command: Command, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(320)
    target = write_checkpoint(tmp_path / "target", tokenizer, 32, 2, 10)
    refuses(
        bass_command("generate", "--target", str(target), "--num_speculative_tokens", "0", "def"),
        "outside the vocabulary",
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["generat"], "`generate`"),
        (["--json"], "must follow the command"),
        (["list", "polcy"], "Did you mean `policy`?"),
        (["list", "policy", "x"], "Unexpected argument `x`"),
        (["list", "--x"], "`--x`"),
    ],
)
def test_commands(bass_command: Command, arguments: list[str], word: str) -> None:
    refuses(bass_command(*arguments), word)


# ---- the same from Python


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
    "contradicting aliases": ({"gamma": 2, "num_assistant_tokens": 3}, "contradict"),
    "quantization": ({"quantization": "int7"}, "Unknown quantization `int7`"),
    "graphs": ({"cuda_graphs": True}, "cuda_graphs=True"),
    "device of a number": ({"device": "cuda:99"}, "device='cuda:99'"),
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
def test_integers_that_no_register_holds_are_refused_from_python(
    llm: bass.LLM, pair: Pair, value: int
) -> None:
    for option in ("temperature", "top_p", "time_budget", "max_new_tokens", "top_k"):
        if value > 2**63 or option == "top_p":
            with pytest.raises(bass.BassError, match=option):
                llm.generate("def", **{option: value})
    with pytest.raises(bass.BassError, match="its longest draft"):
        bass.load(pair.target, pair.draft, device="cpu", num_speculative_tokens=value)
