"""Checkpoints as they occur: files, types, names, ties; messages; and the memory of loading."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bass.checkpoints import shards
from bass.checkpoints.folder import SINGLE, eos_ids
from bass.checkpoints.weights import load_decoder, narrow, read_index, save_decoder
from bass.errors import CheckpointError
from bass.models.llama import Llama, LlamaConfig
from unit.checkpoints import shard, write_checkpoint

CPU = torch.device("cpu")


def parameters(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return dict(load_decoder(folder, CPU, dtype).named_parameters())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rewrite(folder: Path, change: Any) -> Path:
    """Change the tensors of a folder's single file."""
    tensors = load_file(folder / SINGLE)
    save_file(change(tensors) or tensors, folder / SINGLE, metadata={"format": "pt"})
    return folder


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tied", None, 16, 2, 20)


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    decoder = Llama(LlamaConfig(20, 16, 32, 2, 2, 1, 8, 64))
    with torch.no_grad():
        for i, parameter in enumerate(decoder.parameters()):
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
            )
    save_decoder(decoder, tmp_path / "untied", torch.float32)
    return tmp_path / "untied"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_hold_what_one_file_holds(tied: Path, count: int) -> None:
    """The index decides which file has a tensor."""
    whole = parameters(tied)
    for path in shard(tied, count).glob("*.safetensors"):
        stale = {name: torch.zeros(3) for name in ("model.norm.weight", "old")}
        save_file(stale | load_file(path), path, metadata={"format": "pt"})
    assert same(parameters(tied), whole)
    assert len(read_index(tied).files.paths) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_every_type_loads_in_every_type(
    tied: Path, stored: torch.dtype, dtype: torch.dtype
) -> None:
    whole = parameters(tied)
    rewrite(tied, lambda tensors: {name: tensor.to(stored) for name, tensor in tensors.items()})
    assert same(
        parameters(tied, dtype),
        {name: tensor.to(stored).to(dtype) for name, tensor in whole.items()},
    )


def test_names_may_lack_their_prefix(tied: Path, untied: Path) -> None:
    for folder in (tied, untied):
        whole = parameters(folder)
        rewrite(folder, lambda own: {n.removeprefix("model."): t for n, t in own.items()})
        assert same(parameters(folder), whole)


def test_a_tied_matrix_may_be_stored_under_either_name_or_both(tied: Path) -> None:
    whole = parameters(tied)
    assert "head.weight" not in whole
    embed = load_file(tied / SINGLE)["model.embed_tokens.weight"].clone()
    rewrite(tied, lambda tensors: {**tensors, "lm_head.weight": embed})
    assert same(parameters(tied), whole)
    rewrite(tied, lambda own: {name: t for name, t in own.items() if "embed" not in name})
    assert same(parameters(tied), whole)
    rewrite(tied, lambda tensors: {**tensors, "lm_head.weight": torch.zeros(3, 16)})
    with pytest.raises(CheckpointError, match="1 wrongly shaped"):
        read_index(tied)


def test_all_that_is_wrong_is_named_in_one_error(untied: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        del tensors["lm_head.weight"], tensors["model.norm.weight"]
        tensors["model.norm.bias"] = torch.zeros(16)
        tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(16, 32)
        return tensors

    rewrite(untied, change)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(untied, CPU, torch.float32)
    for words in (
        "2 missing (lm_head.weight, model.norm.weight)",
        "1 unexpected (model.norm.bias)",
        "1 wrongly shaped (model.layers.1.mlp.up_proj.weight [16, 32] instead of [32, 16])",
    ):
        assert words in str(caught.value)


def test_narrowing_drops_the_last_ids(untied: Path, tied: Path) -> None:
    for folder in (tied, untied):
        whole, cut = (
            load_decoder(folder, CPU, torch.float32),
            narrow(load_decoder(folder, CPU, torch.float32), 13),
        )
        assert cut.shape.vocab_size == 13
        hidden = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(cut.unembed(hidden), whole.unembed(hidden)[..., :13])
        assert len(cut.embed) == 13


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gets_what_a_cpu_gets(
    tied: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    # many turns of the two buffers within one tensor
    monkeypatch.setattr(shards, "STAGED_BYTES", 300)
    there = {
        name: parameter.cpu()
        for name, parameter in load_decoder(tied, torch.device("cuda"), dtype).named_parameters()
    }
    assert same(there, parameters(tied, dtype))


def test_a_stored_head_that_differs_from_the_embedding_is_used_whatever_the_config_says(
    tied: Path,
) -> None:
    """Fine-tuned checkpoints with a stale `tie_word_embeddings`; so does `transformers`."""
    embed, other = load_file(tied / SINGLE)["model.embed_tokens.weight"], torch.randn(20, 16)
    rewrite(tied, lambda tensors: tensors | {"lm_head.weight": other})
    own = load_decoder(tied, CPU, torch.float32)
    assert own.head is not None
    assert torch.equal(own.head.weight, other)
    assert torch.equal(own.embed, embed)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [(None, [2]), ({"eos_token_id": [7, 5]}, [5, 7]), ({"temperature": 1.0}, [2])],
)
def test_the_generation_config_names_the_end_tokens_if_it_names_any(
    tmp_path: Path, generation: Any, expected: list[int]
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_ids(tmp_path, {"eos_token_id": 2}) == expected
