"""The page on ablations: its configs are there, its commands run."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from bass import pair as embedded
from bass.cli import main
from bass.experiments.config_files import shipped
from bass.runs import settings
from bass.runs.run_folder import RunFolder
from unit.checkpoints import byte_tokenizer, write_checkpoint
from unit.test_examples import definitions
from unit.test_package import ROOT

PAGE = (ROOT / "docs/ablations.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a random pair in the embedded one's place."""
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size()
    monkeypatch.setattr(
        embedded,
        "TARGET",
        write_checkpoint(tmp_path / "target", tokenizer, 32, 6, size, context=1024),
    )
    monkeypatch.setattr(
        embedded,
        "DRAFT",
        write_checkpoint(tmp_path / "draft", tokenizer, 16, 1, size, context=1024),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    (tmp_path / "my_policy.py").write_text(definitions("docs/tutorial/policy.md"), encoding="utf-8")
    for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S):
        name = re.match(r"# (\w+\.yaml)\n", text)
        assert name
        (tmp_path / name[1]).write_text(
            text.replace("max_new_tokens: 48", "max_new_tokens: 4"), encoding="utf-8"
        )
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S))
    ran = 0
    for line in shell.splitlines():
        program, command, *options = shlex.split(line)
        if program != "bass" or "ray" in options:
            continue
        if "paper-draft-size" in options:
            options += ["--max_new_tokens", "2"]
        assert main([command, *options]) == 0, capsys.readouterr().err
        ran += 1
    assert ran == 5
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    cells = list(RunFolder(tmp_path / "runs/layouts-quick").summaries())
    assert cells == ["0000-plain-padded", "0001-mine-padded", "0002-mine-split", "0003-mine-paged"]
    assert len(RunFolder(tmp_path / "runs/lengths").summaries()) == 6
    assert not (tmp_path / "runs/warmer").exists()


def test_the_page_knows_every_shipped_config_and_every_key_of_its_own() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M)) >= set(shipped())
    own = {"batch", "samples", "prompts", "num_prompts", "repeats", "warm_up", *settings.LIMITS}
    assert {f"`{name}`" for name in own} <= set(re.findall(r"`\w+`", PAGE))
    assert own <= set(settings.SETTINGS)
