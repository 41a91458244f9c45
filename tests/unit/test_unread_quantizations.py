"""What is not read is named with its method, also where config.json does not say it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bass
from bass.checkpoints.weights import load_decoder, read_index
from bass.errors import CheckpointError, OptionError
from bass.ops.linear import Linear
from unit.checkpoints import Said
from unit.stored_quantizations import FLOAT8, GPTQ4, INT4, METHODS, compressed, write_quantized
from unit.test_stored_quantizations import CPU, original

NVFP4 = compressed({"num_bits": 4, "type": "float"}, "nvfp4-pack-quantized")
UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by `bitsandbytes`"),
    "hqq": ({"quant_method": "hqq"}, "by `hqq`, which `bass` does not read: use the original"),
    "eetq": ({"quant_method": "eetq"}, "by `eetq`"),
    "nameless": ({"bits": 4}, "by `None`"),
    "gptq of 3 bits": (GPTQ4 | {"bits": 3}, "by gptq with `bits=3`, which `bass` does not read"),
    "gptq for marlin": (GPTQ4 | {"checkpoint_format": "marlin"}, "`checkpoint_format='marlin'`"),
    "awq gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "`version='gemv'`"),
    "awq gemv in its other field": (
        METHODS["awq"][0] | {"version": None, "format": "gemv"},
        "gemv",
    ),
    "awq of llm-awq": (METHODS["awq"][0] | {"backend": "llm-awq"}, "`backend='llm-awq'`"),
    "gptq for another kernel": (GPTQ4 | {"format": "bitblas"}, "`checkpoint_format='bitblas'`"),
    "nvfp4": (NVFP4, "by compressed-tensors with `format='nvfp4-pack-quantized'`"),
    "sparse": (
        compressed(INT4, "pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        "`sparsity_config=",
    ),
    "rotated": (
        compressed(INT4, "pack-quantized") | {"transform_config": {"config_groups": {"R1": {}}}},
        "`transform_config=",
    ),
    "other tensors": (
        METHODS["awq"][0],
        r"its `qweight`|its `scales` is F16 \[\d, \d+\] instead of \[1, 512\]",
    ),
    "other names": (
        compressed(FLOAT8, "float-quantized"),
        r"\(compressed-tensors\) does not describe `.*_proj`: it lacks its `weight`; correct",
    ),
}


@pytest.fixture
def gptq(tmp_path: Path) -> Path:
    return write_quantized(original(tmp_path), tmp_path, *METHODS["gptq"])[0]


def changed(folder: Path, **fields: Any) -> Path:
    """Fields of its config.json; None removes one."""
    raw = json.loads((folder / "config.json").read_bytes()) | fields
    raw = {name: value for name, value in raw.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize("name", UNREAD)
def test_a_quantization_that_is_not_read_is_named(name: str, gptq: Path) -> None:
    config, says = UNREAD[name]
    with pytest.raises(CheckpointError, match=says):
        read_index(changed(gptq, quantization_config=config))


def test_a_separate_file_of_gptq_is_read(gptq: Path) -> None:
    expected = load_decoder(gptq, CPU, torch.float32)
    changed(gptq, quantization_config=None)
    with pytest.raises(CheckpointError, match=r"quantized \(14 tensors such as `.*qweight`\) and"):
        read_index(gptq)
    (gptq / "quantize_config.json").write_text(
        json.dumps({name: value for name, value in GPTQ4.items() if name != "quant_method"})
    )
    found = load_decoder(gptq, CPU, torch.float32)
    for (name, one), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_quantization_without_a_quantization_config_is_named(tmp_path: Path, gptq: Path) -> None:
    folder = changed(gptq, quantization_config=None)
    tensors = load_file(tmp_path / "original" / "model.safetensors")
    for end in ("weight_scale", "SCB", "weight.absmax", "W_q", "weight_scales"):
        save_file(tensors | {f"x.{end}": torch.ones(2)}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=rf"1 tensor such as `x.{end}`\) and has no"):
            read_index(folder)
    save_file(tensors, folder / "model.safetensors")
    read_index(folder)
    changed(folder, quantization={"group_size": 64, "bits": 4})
    with pytest.raises(CheckpointError, match=r"by MLX: `quantization` in its config.json"):
        read_index(folder)


def test_parts_that_are_missing_are_named(gptq: Path) -> None:
    path = gptq / "model.safetensors"
    tensors = load_file(path)
    module = "model.layers.0.mlp.down_proj"
    save_file({n: t for n, t in tensors.items() if n != f"{module}.qzeros"}, path)
    with pytest.raises(CheckpointError, match=f"`{module}`: it lacks its `qzeros`"):
        read_index(gptq)
    groups = tensors[f"{module}.g_idx"].clone()
    groups[5] = 1  # of another size
    save_file(tensors | {f"{module}.g_idx": groups}, path)
    down = load_decoder(gptq, CPU, torch.float32).get_submodule("blocks.0.mlp.down")
    assert type(down) is Linear


def test_biases_of_zeros_that_the_family_has_not_are_ignored_and_others_are_an_error(
    gptq: Path,
) -> None:
    """As old exports of GPTQ have them."""
    path, name = gptq / "model.safetensors", "model.layers.0.mlp.down_proj.bias"
    tensors = load_file(path)
    save_file(tensors | {name: torch.zeros(64, dtype=torch.float16)}, path)
    load_decoder(gptq, CPU, torch.float32)
    save_file(tensors | {name: torch.ones(64, dtype=torch.float16)}, path)
    with pytest.raises(CheckpointError, match=r"1 unexpected .*down_proj.bias"):
        load_decoder(gptq, CPU, torch.float32)


def test_a_second_quantization_is_an_error_and_none_is_not(gptq: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_speculative_tokens": 2, "device": "cpu"}
    with pytest.raises(
        OptionError, match="already quantized by gptq: leave out `quantization`, or give `none`"
    ):
        bass.load(gptq, gptq, quantization="int8", **options)
    bass.load(gptq, gptq, quantization="none", **options)
    target = tmp_path / "original"
    bass.load(target, gptq, quantization="int8", draft_quantization="none", **options)


def test_info_names_method_and_bits(bass_command: Callable[..., Said], gptq: Path) -> None:
    [found] = bass_command("info", str(gptq), "--json").lines[0]["checkpoints"]
    assert found["quantization"] == "gptq: 14 matrices in int4, a scale for groups of 32"
    assert "MiB in float16, quantized as stored" in found["weights"]
