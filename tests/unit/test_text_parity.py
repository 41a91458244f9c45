"""The same ids and the same text as `transformers`, from the same folders."""

import os
import random
from pathlib import Path

import pytest
import transformers
from transformers import AutoTokenizer

from bass.text import TextStream, Tokenizer
from unit.text_flavours import FLAVOURS, build
from unit.text_folders import strings, vocab_and_merges, write

transformers.logging.set_verbosity_error()
BROKEN = "\N{REPLACEMENT CHARACTER}"
# those of every kind come first; every night many more that are drawn
TEXTS = strings() if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else strings()[:300:2]


@pytest.fixture(scope="module", params=FLAVOURS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, transformers.PreTrainedTokenizerFast]:
    folder = build(tmp_path_factory.mktemp("text"), request.param)
    ours = Tokenizer.read(folder)
    assert ours is not None
    return ours, AutoTokenizer.from_pretrained(folder)


Both = tuple[Tokenizer, transformers.PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def encoded(both: Both) -> list[list[int]]:
    """Our ids of `TEXTS`."""
    return [both[0].encode(text) for text in TEXTS]


def token_ids(tokenizer: Tokenizer) -> list[list[int]]:
    """Ids as a model may sample them: any, with many bytes, special tokens, and ids beyond the
    vocabulary among them.
    """
    draw, size = random.Random(1), tokenizer.fast.get_vocab_size()
    odd = [*sorted(tokenizer.bytes), *sorted(tokenizer.silent), size + 5]
    shares = [draw.random() for _ in range(300)]
    return [
        [
            draw.choice(odd) if draw.random() < share else draw.randrange(size)
            for _ in range(draw.randrange(1, 25))
        ]
        for share in shares
    ]


def test_texts_have_the_same_ids(both: Both, encoded: list[list[int]]) -> None:
    """A text that begins with the beginning-of-sequence token has two in `transformers`."""
    bare = both[1](TEXTS, add_special_tokens=False)["input_ids"]
    framed = both[1](TEXTS)["input_ids"]
    begins = (
        both[1]("x")["input_ids"][:1] != both[1]("x", add_special_tokens=False)["input_ids"][:1]
    )
    for text, ours, theirs, alone in zip(TEXTS, encoded, framed, bare, strict=True):
        twice = begins and alone != [] and theirs[0] == alone[0]
        assert ours == theirs[twice:], repr(text)


def test_and_without_the_tokens_around_a_text(both: Both) -> None:
    ours, theirs = both
    for text, ids in zip(TEXTS, theirs(TEXTS, add_special_tokens=False)["input_ids"], strict=True):
        assert ours.encode(text, add_special_tokens=False) == ids, repr(text)


def test_ids_have_the_same_text(both: Both, encoded: list[list[int]]) -> None:
    ours, theirs = both
    for ids in [*encoded, *token_ids(ours)]:
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ids


def test_vocabulary_and_special_tokens_are_the_same(both: Both) -> None:
    ours, theirs = both
    assert ours.vocabulary == theirs.get_vocab()
    assert ours.chat.special == theirs.special_tokens_map


def test_streamed_text_is_what_the_ids_decode_to(both: Both, encoded: list[list[int]]) -> None:
    ours, _ = both
    for ids in [*encoded[::3], *token_ids(ours)]:
        stream = TextStream(ours)
        pieces = [*(stream.push(token) for token in ids), stream.flush()]
        whole, by_five = ours.decode(ids), TextStream(ours)
        assert "".join(pieces) == whole, ids
        assert (
            "".join(
                [*(by_five.push(*ids[i : i + 5]) for i in range(0, len(ids), 5)), by_five.flush()]
            )
            == whole
        ), ids
        assert BROKEN in whole or not any(BROKEN in piece for piece in pieces), ids


def test_the_folders_reach_every_class(tmp_path: Path) -> None:
    """So that agreement above is not agreement on one way of reading a folder."""
    flavours = [
        "CodeGen",
        "Code Llama",
        "OPT",
        "GPT-NeoX",
        "Gemma, tokenizer.model",
        "TinyLlama, tokenizer.json",
        "Qwen 2",
        "Llama 3",
    ]
    classes = [
        type(AutoTokenizer.from_pretrained(build(tmp_path, flavour))).__name__.removesuffix(
            "Tokenizer"
        )
        for flavour in flavours
    ]
    assert classes == [
        "CodeGen",
        "CodeLlama",
        "GPT2",
        "GPTNeoX",
        "Gemma",
        "Llama",
        "Qwen2",
        "TokenizersBackend",
    ]


def test_the_texts_reach_every_token_kind(both: Both, encoded: list[list[int]]) -> None:
    """Bytes, special tokens and characters of several tokens occur, where the tokenizer has
    them.
    """
    ours, _ = both
    seen = {token for ids in encoded for token in ids}
    assert not ours.bytes or len(seen & ours.bytes.keys()) > 50
    assert not ours.silent or seen & ours.silent or ours.fast.encode_special_tokens


def test_vocab_and_merges_are_read_where_transformers_wants_a_tokenizer_json(
    tmp_path: Path,
) -> None:
    """GPT-2's rules hold for a folder with nothing else; the class named in it cannot read these
    files.
    """
    plain = write(tmp_path / "gpt2", config={"model_type": "gpt2"}, **vocab_and_merges())
    other = write(
        tmp_path / "starcoder",
        config={"model_type": "gpt_bigcode"}, tokenizer_config={"tokenizer_class": "GPT2Tokenizer"},
        **vocab_and_merges(),
    )  # fmt: skip
    ours, theirs = Tokenizer.read(other), AutoTokenizer.from_pretrained(plain)
    assert ours is not None
    assert ours.source == "vocab.json"
    for text, ids in zip(strings(), theirs(strings())["input_ids"], strict=True):
        assert ours.encode(text) == ids
    with pytest.raises(Exception, match="backend tokenizer"):
        AutoTokenizer.from_pretrained(other)


def test_tokenizer_json_is_read_before_the_other_files(tmp_path: Path) -> None:
    folder = build(tmp_path, "GPT-2, tokenizer.json beside")
    ours = Tokenizer.read(folder)
    assert ours is not None
    assert ours.source == "tokenizer.json"
    (folder / "tokenizer.json").unlink()
    beside = Tokenizer.read(folder)
    assert beside is not None
    assert beside.source == "vocab.json"
    assert [beside.encode(text) for text in strings()[:300]] == [
        ours.encode(text) for text in strings()[:300]
    ]
