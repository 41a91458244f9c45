"""Rarer forms of quantized checkpoints: groups of modules, patterns, overrides, padding."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bass.checkpoints.quantized.formats import summary
from bass.checkpoints.weights import read_index, save_decoder
from bass.models.llama import Llama, LlamaConfig
from unit.stored_quantizations import (
    GROUP,
    INT4,
    Written,
    compressed,
    eight_bits,
    packed,
    write_quantized,
)
from unit.test_stored_quantizations import logits, original

INT8_ROWS = {"num_bits": 8, "type": "int", "strategy": "channel"}
DOWN, DOWNS = "model.layers.1.mlp.down_proj", r"re:model\.layers\.\d+\.mlp\.down_proj"
# targets of 4 bits, which all but `down_proj` have, and those of 8, in the order of the config
TARGETS: dict[str, list[tuple[int, list[str]]]] = {
    "class first": [(4, ["Linear"]), (8, [DOWNS])],
    "names last": [(4, ["re:.*"]), (8, [DOWN, DOWN.replace("1", "0")])],
    "two patterns": [(4, ["re:model.*_proj"]), (8, ["re:.*down_proj"])],
}


def same(found: Path, meant: Path) -> None:
    ours, theirs = (logits(folder)[1] for folder in (found, meant))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def said(folder: Path) -> str:
    index = read_index(folder)
    return summary(index.files)


def by_module(folder: Path, config: Any, store: Callable[[str, Tensor], Written]) -> Path:
    """As `write_quantized`, with a form for each module."""
    source = original(folder)
    modules = iter(
        [n for n in load_file(source / "model.safetensors") if n.endswith("_proj.weight")]
    )
    return write_quantized(source, folder, config, lambda w: store(next(modules), w))[0]


def groups(*given: tuple[int, list[str]]) -> Any:
    config = compressed(INT4, "mixed-precision")
    config["config_groups"] = {
        str(i): {
            "targets": targets,
            "format": "pack-quantized" if bits == 4 else "int-quantized",
            "weights": INT4 if bits == 4 else INT8_ROWS,
        }
        for i, (bits, targets) in enumerate(given)
    }
    return config


def mixed(name: str, w: Tensor) -> Written:
    return eight_bits(w, torch.int8, True) if "down" in name else packed(w)


@pytest.mark.parametrize("name", TARGETS)
def test_a_module_belongs_to_the_group_that_matches_it_best(name: str, tmp_path: Path) -> None:
    folder = by_module(tmp_path, groups(*TARGETS[name]), mixed)
    same(folder, tmp_path / "meant")
    assert "2 matrices in int8, a scale for each row" in said(folder)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("inner", [90, 93])  # in groups of 32 and words of 8
def test_inputs_that_are_no_multiple_of_a_word_are_filled_up(
    inner: int, zeros: bool, tmp_path: Path
) -> None:
    config = LlamaConfig(67, 64, inner, 1, 4, 2)
    decoder = Llama(config)
    with torch.no_grad():
        for i, p in enumerate(decoder.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.2)
    save_decoder(decoder, tmp_path / "original", torch.float32)

    def store(w: Tensor) -> Written:
        out, size = w.shape
        whole = torch.nn.functional.pad(w, (0, -size % GROUP, 0, -out % 8))
        stored, meant = packed(whole, symmetric=not zeros)
        stored["weight_packed"] = stored["weight_packed"][:out, : math.ceil(size / 8)]
        stored["weight_scale"] = stored["weight_scale"][:out]
        return stored | {"weight_shape": torch.tensor(w.shape)}, meant[:out, :size].contiguous()

    weights = compressed(INT4 | {"symmetric": not zeros}, "pack-quantized")
    quantized, meant = write_quantized(tmp_path / "original", tmp_path, weights, store)
    same(quantized, meant)
