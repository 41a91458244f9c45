"""A tokenizer that is read within limits takes no long time to read."""

import json
import threading
import time
from pathlib import Path

import pytest

from bass.errors import CheckpointError
from bass.text import Tokenizer

CLEANUP = {"type": "WordPiece", "prefix": "##", "cleanup": True}


def write(folder: Path, tokens: int, decoders: int) -> None:
    vocabulary = {f"t{i}": i for i in range(tokens)} | {"[UNK]": tokens}
    content = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [CLEANUP] * decoders},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_decoders_that_take_long_for_each_token_are_refused_in_time(tmp_path: Path) -> None:
    """80,000 tokens and 199 decoders, all within their limits, take ten seconds to decode."""
    write(tmp_path, 80_000, 199)
    began, running = time.process_time(), set(threading.enumerate())
    with pytest.raises(CheckpointError) as told:
        Tokenizer.read(tmp_path)
    taken = time.process_time() - began
    assert "takes more than 1.8 seconds to decode each of its 80,001 tokens once" in str(told.value)
    assert taken < 3.0
    for thread in set(threading.enumerate()) - running:  # nothing goes on in the background
        thread.join(5.0)
        assert not thread.is_alive()


def test_a_vocabulary_of_the_usual_size_is_read(tmp_path: Path) -> None:
    write(tmp_path, 20_000, 3)
    assert Tokenizer.read(tmp_path) is not None
