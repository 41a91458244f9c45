"""Text comes as tokens do, never in halves of characters, and ends before a stop string."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from bass.errors import PairingError
from bass.text import TextStream, Tokenizer, check_same_tokenizer
from unit.checkpoints import byte_tokenizer
from unit.text_folders import build

BYTES = Tokenizer(byte_tokenizer())
BROKEN = "\N{REPLACEMENT CHARACTER}"


def streamed(ids: list[int], tokenizer: Tokenizer = BYTES) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(token) for token in ids), stream.flush()]


def read(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.read(folder)
    assert tokenizer is not None
    return tokenizer


@given(st.lists(st.integers(1, BYTES.fast.get_vocab_size() - 1), max_size=30), st.integers(1, 6))
def test_streamed_text_of_any_tokens_is_what_they_decode_to(ids: list[int], count: int) -> None:
    stream = TextStream(BYTES)
    parts = [stream.push(*ids[i : i + count]) for i in range(0, len(ids), count)]
    assert "".join([*parts, stream.flush()]) == "".join(streamed(ids)) == BYTES.decode(ids)


@given(st.text(alphabet="aé☕𝄞"))
def test_a_character_comes_whole_or_not_yet(text: str) -> None:
    pieces = streamed(BYTES.encode(f"{text}<eos>"))
    assert "".join(pieces) == text  # a special token is no text
    assert all(BROKEN not in piece for piece in pieces)
    assert "".join(streamed(BYTES.encode("☕")[:-1])).startswith(BROKEN)


def test_a_run_of_bytes_is_shown_when_it_has_ended(tmp_path: Path) -> None:
    """A byte that makes the run invalid takes back the characters before it, so none is shown
    before that is known.
    """
    tokenizer = read(build(tmp_path, "Llama 2, tokenizer.model"))
    cup = [tokenizer.vocabulary[f"<0x{byte:02X}>"] for byte in "☕".encode()]
    a = tokenizer.vocabulary["a"]
    for ids, shown in (
        ([*cup, a], ["", "", "", "☕a", ""]),
        ([*cup, cup[0], a], ["", "", "", "", f"{BROKEN * 4}a", ""]),
        (cup, ["", "", "", "☕"]),
    ):
        assert streamed(ids, tokenizer) == shown
    spaced = [tokenizer.vocabulary[piece] for piece in ("<s>", "▁", "a", "▁", "▁", "a")]
    assert streamed(spaced, tokenizer)[:-1] == ["", "", "a", " ", " ", "a"]  # none before the first


def changed(**parts: Any) -> Tokenizer:
    """The tokens of `BYTES`, and something else about it."""
    own = json.loads(BYTES.fast.to_str())
    own["model"] |= {name: parts.pop(name) for name in list(parts) if name in own["model"]}
    return Tokenizer(FastTokenizer.from_str(json.dumps(own | parts)))


def test_other_tokens_are_an_error_and_other_added_tokens_a_warning() -> None:
    vocab = json.loads(BYTES.fast.to_str())["model"]["vocab"]
    swapped = vocab | {"A": vocab["B"], "B": vocab["A"]}
    with pytest.raises(
        PairingError, match=r"token 'A' is \d+ in the target's and \d+ in the draft"
    ):
        check_same_tokenizer(BYTES, changed(vocab=swapped))
    more = changed()
    more.fast.add_tokens([AddedToken("<extra>"), AddedToken("<more>", special=True)])
    for pair, words in (
        (
            (BYTES, more),
            "'<extra>' is missing in the target's and 314 in the draft's.*target's all",
        ),
        ((more, BYTES), "'<extra>' is 314 in the target's and missing in the draft's"),
    ):
        with pytest.warns(UserWarning, match=words):
            check_same_tokenizer(*pair)
