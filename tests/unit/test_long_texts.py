"""Texts that no context holds are refused before they are encoded, which takes gigabytes."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.checkpoints import Pair, Said

LONG = "ab cd ef\n" * 1_000_000


@pytest.mark.parametrize("command", ["generate", "chat", "ablate", "eval", "skip_long"])
def test_a_text_of_megabytes_is_refused_before_it_is_encoded(
    bass_command: Callable[..., Said], pair: Pair, tmp_path: Path, command: str
) -> None:
    target = pair.copy(tmp_path).target
    (target / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "long.txt").write_text(LONG)
    (tmp_path / "d.jsonl").write_text(json.dumps({"question": LONG, "answer": "#### 1"}))
    models = {"target": str(target), "draft": str(pair.draft)}
    base = models | {"prompts": str(tmp_path / "long.txt"), "max_new_tokens": 2}
    (tmp_path / "c.yaml").write_text(json.dumps({"base": base}))
    request = ["--target", str(target), "--draft", str(pair.draft), "--max-new-tokens", "2"]
    evaluation = ["eval", "--task", "gsm8k", "--data", str(tmp_path / "d.jsonl"), "-n", "1"]
    evaluation += [*request, "--output", str(tmp_path / "o")]
    arguments = {
        "generate": ["generate", "--file", str(tmp_path / "long.txt"), *request],
        "chat": ["generate", "--chat", "--file", str(tmp_path / "long.txt"), *request],
        "ablate": ["ablate", str(tmp_path / "c.yaml"), "--output", str(tmp_path / "o")],
        "eval": evaluation,
        "skip_long": [*evaluation, "--skip-long"],
    }[command]
    began = time.process_time()
    said = bass_command(*arguments)
    assert time.process_time() - began < 2
    assert (said.status, said.err.count("\n")) == (2, 1), said.err
    assert "characters" in said.err or "rompts" in said.err
