"""A tokenizer that is read within limits takes no long time to read."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bass.errors import CheckpointError
from bass.text import StopStrings, Tokenizer, Transcript

SPACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}


def write(folder: Path, tokens: int, decoders: list[dict[str, Any]]) -> None:
    vocabulary = {f"t{i}": i for i in range(tokens)} | {"[UNK]": tokens, "<0x41>": tokens + 1}
    content = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_decoders_that_take_long_for_each_token_are_refused_in_time(tmp_path: Path) -> None:
    """240,000 tokens and 199 decoders, all within their limits, take ten seconds of processor time
    and more to decode, in several threads where there are processors.
    """
    write(tmp_path, 240_000, [SPACE] * 199)
    began, running = time.process_time(), set(threading.enumerate())
    with pytest.raises(CheckpointError) as told:
        Tokenizer.read(tmp_path)
    taken = time.process_time() - began
    assert "takes more than 1.8 seconds to decode each of its 240,002 tokens once" in str(
        told.value
    )
    assert taken < 3.0 + 1.8 * (os.cpu_count() or 1)
    for thread in set(threading.enumerate()) - running:  # nothing goes on in the background
        thread.join(5.0)
        assert not thread.is_alive()


def test_a_vocabulary_of_the_usual_size_is_read(tmp_path: Path) -> None:
    write(tmp_path, 20_000, [SPACE] * 3)
    assert Tokenizer.read(tmp_path) is not None


@pytest.mark.parametrize("stops", [None, ["zz"]])
@pytest.mark.parametrize("text", ["t1", "<0x41>"])
def test_tokens_without_text_take_linear_time(
    tmp_path: Path, text: str, stops: list[str] | None
) -> None:
    """Some 0.1 s; a text that was decoded anew for each token would take 10 s."""
    nothing = {"type": "Replace", "pattern": {"String": text}, "content": ""}
    write(tmp_path, 9, [nothing, {"type": "ByteFallback"}, {"type": "Fuse"}])
    tokenizer = Tokenizer.read(tmp_path)
    assert tokenizer is not None
    transcript = Transcript(tokenizer, StopStrings(stops) if stops else None)
    token, began = tokenizer.vocabulary[text], time.process_time()
    for _ in range(6000):
        transcript.push([token])
    transcript.push([3])
    assert time.process_time() - began < 2
    assert transcript.text + transcript.finish() == "t3"
