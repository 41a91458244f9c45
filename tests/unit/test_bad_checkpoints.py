"""Damaged and missing checkpoints are refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass.checkpoints.folder import SINGLE
from bass.checkpoints.weights import read_index
from bass.errors import CheckpointError
from unit.checkpoints import Pair, Said, write_checkpoint
from unit.test_bad_input import refuses

Command = Callable[..., Said]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5000000\n"


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = {
            k: v for k, v in (json.loads(path.read_text()) | changes).items() if v != "DELETED"
        }
        path.write_text(json.dumps(config))

    return edit


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def rename(name: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).rename(folder / new)


DAMAGE: dict[str, tuple[Any, str]] = {
    "no config.json": (remove("config.json"), "has no config.json: give a Hugging Face folder"),
    "another family": (edit_config(model_type="mamba"), "model_type `mamba`"),
    "a missing field": (edit_config(hidden_size="DELETED"), "hidden_size"),
    "other weights": (edit_config(intermediate_size=48), "wrongly shaped .* belong together"),
    "more layers than the weights": (edit_config(num_hidden_layers=5), "missing"),
    "a pickle": (rename(SINGLE, "pytorch_model.bin"), "convert them with `bass convert "),
    "no weights": (remove(SINGLE), "no weights, .* it holds config.json, tokenizer.json"),
    "truncated weights": (cut_weights, f"{SINGLE}` cannot be read"),
    "a pointer": (write(SINGLE, POINTER), "pointer of Git LFS .* `git lfs pull`"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_wrong_with_a_folder_is_named(pair: Pair, tmp_path: Path, case: str) -> None:
    damage, words = DAMAGE[case]
    folder = pair.copy(tmp_path).target
    damage(folder)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_index(folder)
    assert str(folder) in str(caught.value)


def test_an_error_is_one_sentence_of_a_command(bass_command: Command, pair: Pair) -> None:
    refuses(bass_command("info", "/nonexistent"), "`/nonexistent` is no folder")
    options = ["--target", str(pair.target), "--draft", "/nonexistent", "x"]
    refuses(bass_command("generate", *options), "`/nonexistent`")


def test_a_draft_with_another_vocabulary(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "draft", None, 16, 1, 77)
    arguments = ["--target", str(pair.target), "--draft", str(other)]
    refuses(bass_command("generate", *arguments, "x"), "77", "vocabular")
    said = bass_command("info", str(pair.target), "--draft", str(other), "--json")
    assert (said.status, said.lines[0]["compatible"]) == (1, False)
    assert "have vocabularies of" in said.lines[0]["about"]


def test_a_draft_with_another_tokenizer(bass_command: Command, pair: Pair, tmp_path: Path) -> None:
    own = pair.copy(tmp_path)
    tokens = json.loads((own.draft / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (own.draft / "tokenizer.json").write_text(json.dumps(tokens))
    refuses(bass_command("generate", *own.options, "x"), "different tokenizers", "'a'")
