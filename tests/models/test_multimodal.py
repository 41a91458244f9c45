"""Of a multimodal folder the text half is read, under each of the names that folders use."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bass
from bass.api.loading import Checkpoint, ModelSpec
from bass.checkpoints.folder import SINGLE
from bass.checkpoints.multimodal import MULTIMODAL, Multimodal
from bass.checkpoints.weights import load_decoder, read_index
from bass.errors import CheckpointError
from bass.pair import DRAFT
from models.cases import CASES, COMMON, Case
from models.reference import deviation, make

TIED, UNTIED = [case for case in CASES if case.family == "gemma3"][:2]


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Write the tensors again, each with the first of `names` that it begins with replaced."""
    tensors = {}
    for name, tensor in load_file(folder / SINGLE).items():
        start = next((start for start in names if name.startswith(start)), "")
        tensors[names.get(start, "") + name.removeprefix(start)] = tensor.clone()
    save_file(tensors, folder / SINGLE)


def changed(folder: Path, **fields: Any) -> None:
    """Change fields of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


NAMES = {
    "of new files": {
        "language_model.lm_head.": "lm_head.",
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
    "of a text folder": {"language_model.": ""},
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("case", [TIED, UNTIED], ids=str)
def test_each_way_of_naming_is_read(case: Any, names: dict[str, str], tmp_path: Path) -> None:
    model = make(case)
    model.save_pretrained(tmp_path)
    renamed(tmp_path, names)
    assert deviation(case, tmp_path, model) <= 1e-4


def test_a_text_half_that_unties_a_missing_head_is_tied(tmp_path: Path) -> None:
    model = make(TIED)
    model.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    changed(tmp_path, tie_word_embeddings=None, text_config=text | {"tie_word_embeddings": False})
    assert deviation(TIED, tmp_path, model) <= 1e-4


def test_kinds_of_layers_in_a_half_of_mistral_are_not_read(tmp_path: Path) -> None:
    """`transformers` takes a Mistral with them for a Ministral, but in no text half."""
    case = next(c for c in CASES if c.family == "mistral3" and "window of 5" in str(c))
    model = make(case)
    model.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    kinds = ["full_attention"] * text["num_hidden_layers"]
    changed(tmp_path, text_config=text | {"model_type": "mistral", "layer_types": kinds})
    assert read_index(tmp_path).decoder.config.model_type == "mistral"
    assert deviation(case, tmp_path, model) <= 1e-4


def test_what_the_outer_config_says_holds(tmp_path: Path) -> None:
    make(TIED).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    changed(tmp_path, eos_token_id=[1, 96], dtype="float16")
    checkpoint = Checkpoint.of(ModelSpec(str(tmp_path), torch.device("cpu"), "auto"))
    assert checkpoint.eos == [1, 96]
    assert checkpoint.index.raw["dtype"] == "float16"


def test_an_entry_is_enough_for_other_folders_with_the_names_of_llava(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MULTIMODAL, "llava", Multimodal("llama"))
    text = {"model_type": "llama", **COMMON}
    vision = {**TIED.arguments["vision_config"], "model_type": "clip_vision_model"}
    arguments = {"vocab_size": 97, "text_config": text, "vision_config": vision}
    case = Case("llava", "text half", arguments)
    model = make(case)
    model.save_pretrained(tmp_path)
    assert deviation(case, tmp_path, model) <= 1e-4


TWO_WAYS: dict[str, Any] = {"text_config": {"use_bidirectional_attention": True}}


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("gemma3", {"text_config": {"model_type": "mamba"}}, "of model_type `mamba`"),
        ("gemma3", TWO_WAYS, "use_bidirectional_attention"),
        ("mistral3", {"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized"),
        ("mistral3", {}, "vocab_size"),
    ],
    ids=str,
)
def test_what_is_not_read_is_refused(
    kind: str, fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **fields}))
    save_file({"x": torch.zeros(1)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=says):
        load_decoder(tmp_path, torch.device("cpu"), torch.float32)


def test_a_chat_with_a_multimodal_folder_is_one_with_its_text_half(tmp_path: Path) -> None:
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    for folder in (plain, whole):
        shutil.copytree(DRAFT, folder)
        (folder / "chat_template.jinja").write_text(
            "{% for message in messages %}# {{ message['content'] }}\n{% endfor %}"
        )
    renamed(whole, {"": "language_model."})
    config = json.loads((whole / "config.json").read_text())
    changed(whole, model_type="mistral3", text_config=config)
    conversation = [{"role": "user", "content": "Add two numbers."}]
    said = [
        bass.load(folder, folder, num_speculative_tokens=2, device="cpu")
        .chat(conversation, max_new_tokens=12, temperature=0)
        .completions[0]
        .text
        for folder in (plain, whole)
    ]
    assert said[0] == said[1] != ""
