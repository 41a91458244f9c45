"""Bad input of the command line ends in one sentence on standard error and exit status 2."""

import re
from collections.abc import Callable
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


class NoMaximum(Always):
    answer = None
    max_length = None  # pyright: ignore[reportAssignmentType]


class Incomplete(DraftLengthPolicy[int]):
    max_length = 4


class NoPolicy:
    pass


def refuses(said: Said, *words: str) -> None:
    """Status 2, nothing on standard output, and one sentence with these words on standard error."""
    assert said.status == 2, said
    assert said.out == ""
    assert re.fullmatch(r"bass: [^\n]+[.)]\n", said.err), said.err
    for word in words:
        assert word in said.err, said.err


OPTIONS = {
    "policy that its module lacks": (["--policy", "unit.test_bad_input:Nothing"], "Nothing"),
    "class that is no policy": (["--policy", "unit.test_bad_input:NoPolicy"], "DraftLengthPolicy"),
    "incomplete policy": (["--policy", "unit.test_bad_input:Incomplete"], "lengths"),
    "learned head": (["--drafter", "medusa"], "give the folder of a head"),
    "name of a head as SGLang has it": (["--drafter", "EAGLE3"], "target are `--draft eagle3`"),
    "cache and backend that don't pair": (
        ["--cache", "padded", "--attention", "per-row"],
        "Cannot pair `PerRow` with `PaddedCache`",
    ),
    "negative temperature": (["--temperature", "-0.1"], "temperature"),
    "more new tokens than the context holds": (["--max-new-tokens", "64"], "context of 64"),
    "two sources of prompts": (["--example"], "--example"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(bass_command: Command, pair: Pair, case: str) -> None:
    options, word = OPTIONS[case]
    refuses(bass_command("generate", *pair.options, "def f(", *options), word)


PROMPTS = {
    "empty prompt": ([""], "empty"),
    "prompt longer than the context": (["x = 1\n" * 100], "context of 64"),
    "token id out of range": (["--token-ids", "[1,999]"], "999"),
    "missing file": (["--prompts", "/nonexistent/prompt.txt"], "No such file"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(bass_command: Command, pair: Pair, case: str) -> None:
    arguments, word = PROMPTS[case]
    refuses(bass_command("generate", *pair.options, *arguments), word)


def test_text_without_a_tokenizer(bass_command: Command, silent_pair: Pair) -> None:
    refuses(bass_command("generate", *silent_pair.options, "def f("), "no tokenizer")
    refuses(
        bass_command("generate", *silent_pair.options, "--token-ids", "[1]", "--stop", "x"),
        "`stop` needs text",
    )
