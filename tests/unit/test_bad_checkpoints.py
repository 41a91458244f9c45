"""Damaged and missing checkpoints are refused in one sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unit.checkpoints import Pair, Said, byte_tokenizer, write_checkpoint
from unit.test_bad_input import refuses

Command = Callable[..., Said]


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def noise_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)


def folder_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


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


def index(places: dict[str, str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    return edit


DAMAGE: dict[str, tuple[Any, ...]] = {
    "no config.json": (remove("config.json"), "no config.json"),
    "config.json that is no JSON": (write("config.json", "{"), "config.json", "JSON"),
    "config.json that is no object": (write("config.json", "[]"), "config.json", "JSON"),
    "config.json of another family": (edit_config(model_type="mamba"), "mamba", "llama"),
    "config.json without a field": (edit_config(hidden_size="DELETED"), "hidden_size"),
    "config.json with a field of a wrong kind": (edit_config(hidden_size="wide"), "config.json"),
    "config.json with a negative size": (edit_config(num_hidden_layers=-1), "config.json"),
    "config.json with heads that do not divide": (
        edit_config(num_key_value_heads=3),
        "config.json",
    ),
    "config.json with an eos that is no token": (edit_config(eos_token_id="stop"), "eos_token_id"),
    "config.json of other weights": (edit_config(intermediate_size=48), "do not belong together"),
    "config.json with more layers than the weights": (
        edit_config(num_hidden_layers=5),
        "missing",
        "do not belong together",
    ),
    "config.json with fewer layers than the weights": (
        edit_config(num_hidden_layers=1),
        "unexpected",
        "do not belong together",
    ),
    "config.json of a billion layers": (
        edit_config(num_hidden_layers=10**9),
        "do not belong together",
    ),
    "weights in a pickle": (
        rename("model.safetensors", "pytorch_model.bin"),
        "convert them with `bass convert ",
    ),
    "weights as GGUF": (rename("model.safetensors", "model.gguf"), "GGUF"),
    "an index that leaves the folder": (
        index({"x": "../target/model.safetensors"}),
        "model.safetensors.index.json",
    ),
    "an index without its files": (
        index({"x": "model-00001-of-00001.safetensors"}),
        "lacks 1 of the 1 files",
    ),
    "no weights": (remove("model.safetensors"), "no model.safetensors"),
    "truncated weights": (cut_weights, "model.safetensors", "damaged or truncated"),
    "weights cut in the header": (cut_header, "model.safetensors", "damaged or truncated"),
    "empty weights": (empty_weights, "model.safetensors", "damaged or truncated"),
    "corrupt weights": (noise_for_weights, "model.safetensors", "damaged or truncated"),
    "a folder in the weights' place": (folder_for_weights, "model.safetensors"),
    "corrupt tokenizer": (
        write("tokenizer.json", "{}"),
        "tokenizer.json",
        "not a readable tokenizer",
    ),
    "corrupt generation_config.json": (
        write("generation_config.json", "{"),
        "generation_config.json",
        "JSON",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_target(bass_command: Command, pair: Pair, tmp_path: Path, case: str) -> None:
    damage, *words = DAMAGE[case]
    own = pair.copy(tmp_path)
    damage(own.target)
    refuses(bass_command("generate", *own.options, "def f("), *words)
    refuses(bass_command("info", str(own.target)), *words)


@pytest.mark.parametrize(
    "case", [c for c in DAMAGE if not re.search("generation_config|eos|fewer", c)]
)
def test_damaged_draft(bass_command: Command, pair: Pair, tmp_path: Path, case: str) -> None:
    damage, *_ = DAMAGE[case]
    own = pair.copy(tmp_path)
    damage(own.draft)
    refuses(
        bass_command("generate", *own.options, "def f("),
        str(own.draft) if case != "config.json of another family" else "",
    )


def test_missing_folders(bass_command: Command, pair: Pair) -> None:
    refuses(
        bass_command("generate", "--target", "/nonexistent", "--draft", str(pair.draft), "x"),
        "`/nonexistent`",
    )
    refuses(
        bass_command("generate", "--target", str(pair.target), "--draft", "/nonexistent", "x"),
        "`/nonexistent`",
    )
    # before the draft that it would need
    refuses(bass_command("generate", "--target", "/nonexistent", "x"), "No checkpoint folder")
    refuses(
        bass_command("generate", "--target", str(pair.target), "x"),
        "needs a draft",
        "num_speculative_tokens=0",
    )
    alone = ["--num_speculative_tokens", "0", "x"]
    refuses(
        bass_command("generate", "--target", str(pair.target / "config.json"), *alone),
        "No checkpoint folder",
    )
    refuses(bass_command("info", "/nonexistent"), "`/nonexistent`")
    refuses(bass_command("info"), "checkpoint")


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


def test_a_tokenizer_with_ids_beyond_the_vocabulary(bass_command: Command, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(320)
    target = write_checkpoint(tmp_path / "target", tokenizer, 32, 2, 10)
    refuses(
        bass_command("generate", "--target", str(target), "--num_speculative_tokens", "0", "def"),
        "outside the vocabulary",
    )
