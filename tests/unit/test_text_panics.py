"""Tokenizers at which the Rust library panics, or ends the process: one sentence each, and no stack
of Rust's before it.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bass.errors import CheckpointError
from bass.text import Tokenizer
from bass.text.quiet import quiet
from unit.checkpoints import Pair
from unit.test_hostile_files import edited

END = "é\x1b]0;x\x07\x1b[31mRED"
STRIP = {"type": "Strip", "content": "a", "start": 0, "stop": 1}
FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "no", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {},
}
PANICS: dict[str, dict[str, Any]] = {
    "a merge without the prefix, within a character": {
        "model.continuing_subword_prefix": "#",
        "model.vocab.long": {END: 500},
        "model.merges": [["a", END]],
    },
    "a merge without the prefix, too short": {
        "model.continuing_subword_prefix": "###",
        "model.merges": [["a", "b"]],
    },
    "a decoder that strips an end": {"decoder": STRIP},
    "a decoder that strips the end of all": {
        "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, STRIP]}
    },
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a template of unknown tokens": {"post_processor": FIRST},
    "a table that is none": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////2EA"}
    },
}


@pytest.mark.parametrize("case", PANICS)
def test_a_tokenizer_that_panics_is_refused_in_a_sentence(
    pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    folder = pair.copy(tmp_path).target
    edited(folder, PANICS[case])
    # the library builds it: no class of transformers puts parts of its own in their place
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"is not a readable tokenizer \(.*\): download"):
        Tokenizer.read(folder)
    assert capfd.readouterr().err == ""


def test_what_is_no_panic_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet(), quiet():
        os.write(2, b"one ")
    with contextlib.suppress(ValueError), quiet():
        os.write(2, b"two ")
        raise ValueError
    with contextlib.suppress(KeyboardInterrupt), quiet():
        print("three", file=sys.stderr)
        raise KeyboardInterrupt
    assert capfd.readouterr().err == "one two three\n"


def test_a_closed_standard_error_stays_closed() -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        with quiet():
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(2)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
