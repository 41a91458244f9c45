"""The same ids and the same text as `transformers`, from the same folders."""

import os
import random
from pathlib import Path

import pytest
import transformers
from transformers import AutoTokenizer

from bass.text import TextStream, Tokenizer
from unit.text_folders import FLAVOURS, build, strings

transformers.logging.set_verbosity_error()
BROKEN = "\N{REPLACEMENT CHARACTER}"
# those of every kind come first; every night many more that are drawn
TEXTS = strings() if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else strings()[:300:2]
Both = tuple[Tokenizer, transformers.PreTrainedTokenizerFast]


@pytest.fixture(scope="module", params=FLAVOURS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = build(tmp_path_factory.mktemp("text"), request.param)
    ours = Tokenizer.read(folder)
    assert ours is not None
    return ours, AutoTokenizer.from_pretrained(folder)


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


def test_texts_have_the_same_ids(both: Both) -> None:
    """A text that begins with the beginning-of-sequence token has two in `transformers`."""
    ours, theirs = both
    bare, framed = theirs(TEXTS, add_special_tokens=False)["input_ids"], theirs(TEXTS)["input_ids"]
    first = theirs("x")["input_ids"][:1]
    begins = first != theirs("x", add_special_tokens=False)["input_ids"][:1]
    for text, alone, whole in zip(TEXTS, bare, framed, strict=True):
        twice = begins and alone[:1] == first
        assert ours.encode(text) == whole[twice:], repr(text)
        assert ours.encode(text, add_special_tokens=False) == alone, repr(text)
    seen = {token for ids in bare for token in ids}  # texts reach bytes and special tokens
    assert not ours.bytes or len(seen & ours.bytes) > 50
    assert not ours.silent or seen & ours.silent.keys() or ours.fast.encode_special_tokens


def test_ids_have_the_same_text_at_once_and_streamed(both: Both) -> None:
    ours, theirs = both
    for ids in [*map(ours.encode, TEXTS), *token_ids(ours)]:
        whole = ours.decode(ids)
        assert whole == theirs.decode(ids, skip_special_tokens=True), ids
        for count in (1, 5):
            stream = TextStream(ours)
            pieces = [stream.push(*ids[i : i + count]) for i in range(0, len(ids), count)]
            assert "".join([*pieces, stream.flush()]) == whole, ids
            assert BROKEN in whole or not any(BROKEN in piece for piece in pieces), ids


def test_vocabulary_and_special_tokens_are_the_same(both: Both) -> None:
    ours, theirs = both
    assert ours.vocabulary == theirs.get_vocab()
    assert ours.chat.special == theirs.special_tokens_map


def test_the_folders_reach_every_class(tmp_path: Path) -> None:
    """So that agreement above is not agreement on one way of reading a folder."""
    classes = {
        type(AutoTokenizer.from_pretrained(build(tmp_path, flavour))).__name__
        for flavour in FLAVOURS
    }
    named = ("CodeGen", "CodeLlama", "GPT2", "GPTNeoX", "Gemma", "Llama", "Qwen2")
    assert {f"{name}Tokenizer" for name in named} | {"TokenizersBackend"} <= classes
