"""Every bad input ends in one sentence and exit status 2: no traceback, nothing on standard
output.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bass.interfaces import DraftLengthPolicy
from bass.records import Feedback
from unit.checkpoints import Pair, Said

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
        ["--cuda-graphs", "maybe"],
        "--cuda-graphs maybe",
        "'auto', 'lazy' or true or false",
    ),
    "graphs on a CPU": (
        ["--cuda-graphs", "true", "--device", "cpu"],
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
    "top_p of zero": (["--top-p", "0"], "top_p=0"),
    "top_p above one": (["--top-p", "1.1"], "top_p=1.1"),
    "top_p of .nan": (["--top-p", ".nan"], "top_p=nan"),
    "negative top_k": (["--top-k", "-1"], "top_k=-1"),
    "fractional top_k": (["--top-k", "1.5"], "--top-k 1.5", "integer"),
    "min_p of one": (["--min-p", "1"], "min_p=1"),
    "min_p of .nan": (["--min-p", ".nan"], "min_p=nan"),
    "repetition_penalty of zero": (["--repetition-penalty", "0"], "repetition_penalty=0"),
    "infinite repetition_penalty": (["--repetition-penalty", ".inf"], "repetition_penalty=inf"),
    "no samples": (["-n", "0"], "num_return_sequences=0"),
    "negative samples": (["-n", "-3"], "num_return_sequences=-3"),
    "more samples than memory holds": (["-n", "10000000000"], "num_return_sequences=10000000000"),
    "samples without a value": (["-n"], "lacks its value"),
    "no new tokens": (["--max-new-tokens", "0"], "max_new_tokens=0"),
    "more new tokens than the context holds": (
        ["--max-new-tokens", "64"],
        "context of 64",
        "lower",
    ),
    "max_new_tokens as a list": (["--max-new-tokens", "[3]"], "--max-new-tokens", "integer"),
    "no rows": (["--max-batch-size", "0"], "max_batch_size=0"),
    "empty stop string": (["--stop", ""], "stop string is empty"),
    "time budget of zero": (["--time-budget", "0"], "time_budget=0"),
    "time budget of .nan": (["--time-budget", ".nan"], "time_budget=nan"),
    "infinite time budget": (["--time-budget", ".inf"], "time_budget=inf"),
    "fractional seed": (["--seed", "0.5"], "--seed 0.5", "integer"),
    "negative draft length": (["--num-speculative-tokens", "-1"], "-1"),
    "two names for the policy": (
        ["--num-speculative-tokens", "2", "--policy", "bass"],
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
        "Unknown option `--max-tokens`: give `--max-new-tokens` (most new tokens per sample).",
    ),
    "number of samples of vLLM": (["--n", "8"], "Unknown option `--n`: give `--num-return-seq"),
    "a flag of transformers": (["--do-sample"], "`--do-sample`: give `--temperature` (0 is gr"),
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
    "token id out of range": (["--token-ids", "[1,999]"], "999", "0 to"),
    "negative token id": (["--token-ids", "[-1]"], "-1"),
    "no token ids": (["--token-ids", "[]"], "empty"),
    "token ids that are none": (["--token-ids", "[1,x]"], "--token-ids", "integer"),
    "token ids without brackets": (["--token-ids", "7"], "--token-ids", "list"),
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
        bass_command("generate", *silent_pair.options, "--token-ids", "[1]", "--stop", "x"),
        "`stop` needs text",
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
