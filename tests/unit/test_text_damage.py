"""Damaged tokenizer files cost one sentence, whatever the libraries below make of them."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from bass.errors import BassError, CheckpointError
from bass.text import TextStream, Tokenizer
from unit.text_flavours import build
from unit.text_folders import write

FILES = {
    "Llama 3": ("tokenizer.json", "tokenizer_config.json"),
    "TinyLlama, tokenizer.json": ("tokenizer.json", "tokenizer_config.json"),
    "Vicuna, added_tokens.json": (
        "tokenizer.model",
        "added_tokens.json",
        "special_tokens_map.json",
        "tokenizer_config.json",
    ),
    "unigram, tokenizer.model": ("tokenizer.model",),
    "unigram, tokenizer.json": ("tokenizer.json",),
    "Phi 3, placeholders": ("tokenizer.model", "tokenizer_config.json"),
    "OPT": ("vocab.json", "merges.txt", "tokenizer_config.json"),
    "Qwen 2": ("vocab.json", "tokenizer_config.json"),
}
ODD = (
    None,
    True,
    -1,
    0,
    2**40,
    0.5,
    "",
    "x",
    "\ud800",
    [],
    ["x"],
    [[]],
    {},
    {"x": 1},
    {"content": 3},
    {"type": "Fuse"},
)


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 6)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def splice(content: bytes, draw: random.Random) -> bytes:
    start, length, to = (draw.randrange(len(content)) for _ in range(3))
    return content[:to] + content[start : start + length % 200] + content[to + draw.randrange(50) :]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: a container and a key of it."""
    for key, part in (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else ()
    ):
        yield value, key
        yield from places(part)


def odd_value(content: bytes, draw: random.Random) -> bytes:
    """Valid JSON with one value replaced by one of another kind, most often one near the top."""
    try:
        value = json.loads(content)
    except ValueError:
        return flip(content, draw)
    found = list(places(value))
    shallow = [place for place in found if len(place[0]) < 30]
    container, key = draw.choice(shallow or found)
    container[key] = draw.choice(ODD)
    return json.dumps(value).encode()


@pytest.mark.parametrize("damage", [cut, flip, splice, odd_value], ids=lambda d: d.__name__)
@pytest.mark.parametrize("flavour", FILES)
def test_a_damaged_file_is_refused_in_one_sentence_or_read(
    tmp_path: Path, flavour: str, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    whole, draw = build(tmp_path, flavour), random.Random(7)
    for i in range(ROUNDS):
        for name in FILES[flavour]:
            folder = Path(shutil.copytree(whole, tmp_path / "own", dirs_exist_ok=True))
            (folder / name).write_bytes(damage((whole / name).read_bytes(), draw))
            said = refusal(folder)
            assert said is None or (said.endswith(".") and "\n" not in said), (i, name)


ROUNDS = 6


def refusal(folder: Path) -> str | None:
    """What reading and using the tokenizer is refused with, if it is; no other exception is
    caught.
    """
    try:
        use(folder)
    except BassError as error:
        return str(error)
    return None


def use(folder: Path) -> None:
    tokenizer = Tokenizer.read(folder)
    assert tokenizer is not None
    ids = tokenizer.encode(" hello wörld ☕\n <s></s><tool> 12")
    stream = TextStream(tokenizer)
    assert "".join([*(stream.push(token) for token in ids), stream.flush()]) == tokenizer.decode(
        ids
    )


def test_a_vocabulary_without_merges_names_the_folder(tmp_path: Path) -> None:
    folder = build(tmp_path, "GPT-2")
    (folder / "merges.txt").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"vocab\.json` is not a readable tokenizer \(.*\): download it again\.$",
    ):
        Tokenizer.read(folder)


def test_a_panic_below_is_an_error_like_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """Like `pyo3_runtime.PanicException`."""

    def panic(*_: object) -> None:
        raise Panic("index out of bounds")

    folder = write(tmp_path, tokenizer__json="{}")
    monkeypatch.setattr("bass.text.tokenizer.assemble", panic)
    with pytest.raises(CheckpointError, match="index out of bounds"):
        Tokenizer.read(folder)


def test_a_decoder_that_panics_is_an_error_like_another() -> None:
    fast = FastTokenizer(models.BPE({"a": 0}, []))
    fast.decoder = decoders.Sequence(
        [decoders.Fuse(), decoders.Strip(" ", 0, 1)]
    )  # which looks for the last character of a text without any
    with pytest.raises(CheckpointError, match="cannot decode"):
        Tokenizer(fast).decode([])
