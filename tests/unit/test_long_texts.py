"""Texts that no context holds are refused before they are encoded, which takes gigabytes."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.checkpoints import Pair, Said

LONG = "ab cd ef\n" * 1_000_000


@pytest.mark.parametrize("options", [[], ["--chat"]], ids=["text", "chat"])
def test_a_text_of_megabytes_is_refused_before_it_is_encoded(
    bass_command: Callable[..., Said], pair: Pair, tmp_path: Path, options: list[str]
) -> None:
    own = pair.copy(tmp_path)
    (own.target / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "long.txt").write_text(LONG)
    began = time.process_time()
    said = bass_command("generate", "--file", str(tmp_path / "long.txt"), *own.options, *options)
    assert time.process_time() - began < 2
    assert (said.status, said.err.count("\n")) == (2, 1), said.err
    assert "characters" in said.err
