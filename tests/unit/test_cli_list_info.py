"""`bass list`: ours and those of installed packages, the broken ones too; and `bass info`."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bass
from bass import pair as embedded
from bass.api.options import KINDS
from bass.api.resolve import REQUIRED, parameters
from bass.cli.list_ import ABOUT, FAMILY, entries
from bass.models import FAMILIES
from unit.checkpoints import Pair, Said
from unit.distributions import Offer

Command = Callable[..., Said]


def line(said: Said, name: str) -> str:
    """The line about a name."""
    found = [text for text in said.out.splitlines() if text.split()[:1] == [name]]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_has_a_line_with_its_purpose(bass_command: Command, kind: str) -> None:
    said = bass_command("list", kind)
    assert said.status == 0
    assert said.out.startswith(f"{kind}: {ABOUT[kind]}\n")
    for name, found in KINDS[kind].registry.items():
        first = " ".join((found.__doc__ or "").partition("\n\n")[0].split()).partition(". ")[0]
        assert first in line(said, name)


def test_other_names_of_a_class_are_listed_with_it(bass_command: Command) -> None:
    assert " (dflash, dspark) A head" in line(bass_command("list", "drafter"), "block")


def test_all_kinds_and_families_are_listed(bass_command: Command) -> None:
    said = bass_command("list")
    heads = [text.partition(":")[0] for text in said.out.splitlines() if text[0] != " "]
    assert heads == [*ABOUT]
    assert "Touvron et al., 2023" in line(said, "llama")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2500-\u257f]| $", said.out, re.MULTILINE)


def test_a_strategy_by_name_has_its_parameters_and_documentation(bass_command: Command) -> None:
    said = bass_command("list", "goodput")
    assert said.out.startswith("policy goodput (bass.policies.goodput:Goodput, Liu et al., 2024")
    for name, one in parameters(KINDS["policy"].registry["goodput"]).items():
        assert f"  --policy.{name} {one.default!r}\n" in said.out
    assert "Every sum decays by" in said.out
    assert one.default is not REQUIRED
    both = bass_command("list", "split").out  # a cache and an attention backend
    assert both.startswith("cache split (")
    assert "\nattention split (" in both
    said = bass_command("list", "polcy")
    assert (said.status, said.out) == (2, "")
    assert "Unknown strategy `polcy`. Did you mean `policy`" in said.err


MINE = """
from dataclasses import dataclass
from bass.policies import Fixed

@dataclass(frozen=True)
class Mine(Fixed):
    \"\"\"Mine of `k` tokens.\"\"\"

    margin: float = 0.5
"""


def test_a_class_of_ones_own_has_its_parameters(
    bass_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    (tmp_path / "mine_listed.py").write_text(MINE)
    said = bass_command("list", "mine_listed:Mine")
    assert said.out.startswith("policy Mine (mine_listed:Mine, Leviathan et al., 2023)")
    assert "Mine of `k` tokens." in said.out
    assert "  --policy.k 4\n  --policy.margin 0.5\n" in said.out
    for name, text in {
        "nowhere:Mine": "Cannot load `nowhere:Mine` (ModuleNotFoundError: No module named",
        "mine_listed:dataclass": "`mine_listed:dataclass` is no strategy",
    }.items():
        said = bass_command("list", name)
        assert (said.status, said.out) == (2, "")
        assert text in said.err


def test_the_lists_have_the_names_of_the_registries(bass_command: Command) -> None:
    for kind, one in KINDS.items():
        assert {entry.name: entry.path for entry in entries(kind)} == {
            name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in one.registry.items()
        }
    assert [entry.name for entry in entries(FAMILY)] == [*FAMILIES, "gemma3", "mistral3"]
    assert "  --drafter.scripts\n" in bass_command("list", "replay").out  # without a default
    assert "  --policy.policy BatchAdaptive(" in bass_command("list", "lagged").out
    assert "no parameters" in bass_command("list", "padded").out


def test_strategies_of_installed_packages_are_listed_with_their_package(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", half="offered:Half", mute="offered:Outer.Mute")
    assert "Half of `top` tokens" in line(bass_command("list", "policy"), "half")
    assert "from fake-strategies 1.2" in line(bass_command("list", "policy"), "half")
    found = {entry.name: entry for entry in entries("policy")}
    assert (found["half"].origin, found["half"].problem) == ("fake-strategies 1.2", "")
    assert "  --policy.top 4\n" in bass_command("list", "half").out
    assert found["mute"].doc == ""  # that of its base class is none of its own


def test_a_broken_package_has_a_line_and_the_list_goes_on(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", aa="nowhere:Half", bb="fails_on_import:Half", cc="offered:NoStrategy")
    said = bass_command("list")
    assert (said.status, said.err) == (0, "")
    words = {"aa": "No module named 'nowhere'", "bb": "not today", "cc": "is no policy"}
    for name, text in words.items():
        assert text in line(said, name)
        assert "from fake-strategies 1.2" in line(said, name)
    offer("bass.families", "fake-families", own="unit.test_folders:Own", dd="offered:NoStrategy")
    families = bass_command("list", "family")
    assert line(families, "own").endswith("from fake-families 1.2")
    assert "is no model family" in line(families, "dd")
    assert "No module named 'nowhere'" in bass_command("list", "aa").out


# bass info


def test_info_describes_a_checkpoint_and_its_draft(bass_command: Command, pair: Pair) -> None:
    words = ("info", str(pair.target), "--draft", str(pair.draft))
    said = bass_command(*words)
    assert said.status == 0
    assert f"`{pair.draft}` can draft for `{pair.target}`." in said.out
    found = bass_command(*words, "--json").lines[0]
    target, draft = found["checkpoints"]
    assert found["compatible"] is True
    count = sum(p.numel() for p in bass.load(pair.target, pair.draft).models.target.parameters())
    size = (pair.target / "model.safetensors").stat().st_size
    expected = {
        "checkpoint": str(pair.target),
        "family": "llama",
        "parameters": f"{count:,}",
        "layers": "2",
        "heads": "2 query, 1 key-value, of 16 dimensions",
        "context": "64 tokens",
        "chat template": "none",
        "end of sequence": "0",
        "dtype": "float32",
        "files": f"{size:,} bytes in 1 file",
        "KV bytes per token": "256",  # k and v, 2 layers, 1 head, 16 dimensions, 4 bytes
    }
    assert target.items() >= expected.items()
    assert target["weights"].startswith(f"{4 * count / 2**20:.2f} MiB in float32, ")
    assert "int8" in target["weights"]
    assert (draft["layers"], draft["checkpoint"]) == ("1", str(pair.draft))
    for value in target.values():
        assert str(value)[:20] in said.out


def test_info_describes_the_embedded_heads_by_name_and_a_folder_without_weights(
    bass_command: Command, tmp_path: Path
) -> None:
    assert f"{embedded.TARGET}" in bass_command("info", "--json").out
    assert "`eagle3` can draft for" in bass_command("info", "--draft", "eagle3").out
    shutil.copy(embedded.TARGET / "config.json", tmp_path)
    assert "`load_format=dummy`" in bass_command("info", str(tmp_path)).err
    read = bass_command("info", str(tmp_path), "--load-format", "dummy")
    assert read.status == 0
    assert "0 bytes in 0 files" in read.out


def test_info_says_that_a_draft_does_not_fit_or_has_a_shorter_context(
    bass_command: Command, pair: Pair, silent_pair: Pair, tmp_path: Path
) -> None:
    own = pair.copy(tmp_path)
    config = json.loads((own.draft / "config.json").read_text())
    (own.draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40}))
    said = bass_command("info", str(own.target), "--draft", str(own.draft))
    assert said.status == 0
    assert "It drafts up to its context of 40 tokens; then the target goes on." in said.out
    words = ("info", str(pair.target), "--draft", str(silent_pair.draft))
    said = bass_command(*words)
    assert said.status == 1
    assert f"`{silent_pair.draft}` cannot draft for `{pair.target}`. " in said.out
    found = bass_command(*words, "--json").lines[0]
    assert (found["compatible"], "cannot draft" in found["about"]) == (False, True)
