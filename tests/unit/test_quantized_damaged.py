"""Quantized checkpoints whose tensors contradict their quantization_config, or are damaged."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bass.checkpoints.quantized import check_numbers
from bass.checkpoints.quantized.damaged import EXPONENTS, SCANNED, check_codes, check_scales
from bass.checkpoints.shards import KINDS as KINDS_OF_FILES
from bass.checkpoints.weights import load_decoder, read_index
from bass.errors import CheckpointError
from unit.checkpoints import Said
from unit.stored_quantizations import E4M3, GROUP, METHODS, compressed, write_quantized
from unit.test_stored_quantizations import CPU, logits, original

MODULE = "model.layers.1.mlp.down_proj"  # of 96 inputs and 64 outputs
INT8_ZEROS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}
# a method, the fields of its config that require a tensor, the tensor, and what the sentence says
NEEDED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "gptq": ("gptq order", {}, "g_idx", "desc_act=True"),
    "int4 ordered by group": ("int4 order", {}, "weight_g_idx", "actorder='group'"),
    "int4 ordered": ("int4 order", {"actorder": True}, "weight_g_idx", "actorder=True"),
    "int4 in order": ("int4 order", {"actorder": "Dynamic"}, "weight_g_idx", "actorder='Dynamic'"),
    "int4 zeros": ("int4 zeros", {}, "weight_zero_point", "symmetric=False"),
    "int8 zeros": ("int8 weights", INT8_ZEROS, "weight_zero_point", "symmetric=False"),
    "scales": ("gptq", {}, "scales", ""),
}


def written(folder: Path, method: str, **weights: Any) -> Path:
    """A checkpoint, with other fields of its weights (compressed-tensors)."""
    config, store = METHODS[method]
    if weights:
        [group] = config["config_groups"].values()
        config = compressed(group["weights"] | weights, config["format"])
    return write_quantized(original(folder), folder, config, store)[0]


def edit(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def refused(folder: Path, *says: str, at_load: bool = False) -> None:
    """By one sentence with a remedy, that names the folder and says all of this."""
    read = load_decoder if at_load else lambda folder, *_: read_index(folder)
    with pytest.raises(CheckpointError) as caught:
        read(folder, CPU, torch.float32)
    sentence = str(caught.value)
    assert sentence.count(str(folder)) == 1
    assert "download " in sentence or "correct " in sentence
    for part in says:
        assert part in sentence


@pytest.mark.parametrize("everywhere", [True, False], ids=["every", "one"])
@pytest.mark.parametrize("name", NEEDED)
def test_a_tensor_that_the_config_requires_is_missed(
    name: str, everywhere: bool, tmp_path: Path
) -> None:
    method, weights, role, field = NEEDED[name]
    folder = written(tmp_path, method, **weights)

    def without(tensors: dict[str, Tensor]) -> None:
        for tensor in [n for n in tensors if n.endswith(f".{role}")]:
            if everywhere or tensor.startswith(MODULE):
                del tensors[tensor]

    edit(folder, without)
    refused(folder, f"lacks its `{role}`, which its quantization_config requires", field)


@pytest.mark.parametrize("order", [None, False, "weight", "static"])
def test_an_order_of_quantizing_alone_needs_no_groups(order: Any, tmp_path: Path) -> None:
    assert logits(written(tmp_path, "int4", actorder=order))[1].isfinite().all()


def test_one_group_needs_no_order(tmp_path: Path) -> None:
    config, store = METHODS["gptq"]
    folder = write_quantized(original(tmp_path), tmp_path, config, store)[0]

    def one_group(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            if name.endswith(".g_idx"):
                del tensors[name]
            elif name.endswith((".scales", ".qzeros")):
                tensors[name] = tensors[name][:1]

    edit(folder, one_group)
    raw = json.loads((folder / "config.json").read_bytes())
    raw["quantization_config"] |= {"desc_act": True, "group_size": -1}
    (folder / "config.json").write_text(json.dumps(raw))
    load_decoder(folder, CPU, torch.float32)


@pytest.mark.parametrize("symmetric", [True, None])
def test_zero_points_of_weights_that_are_said_to_be_symmetric_are_used(
    symmetric: bool | None, tmp_path: Path
) -> None:
    """As `compressed-tensors` itself does."""
    folder = written(tmp_path, "int4 zeros", symmetric=symmetric)
    found, expected = logits(folder)[1], logits(folder.parent / "meant")[1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["gptq order", "int4 order"])
def test_groups_of_inputs_are_all_groups_or_all_minus_one(method: str, tmp_path: Path) -> None:
    folder = written(tmp_path, method)
    name = f"{MODULE}.g_idx" if method == "gptq order" else f"{MODULE}.weight_g_idx"
    groups = load_file(folder / "model.safetensors")[name]
    for value, at in ((-1, slice(5, 6)), (-2, slice(0, 96)), (3, slice(95, 96))):
        wrong = groups.clone()
        wrong[at] = value
        edit(folder, lambda tensors, wrong=wrong: tensors.update({name: wrong}))
        refused(
            folder, f"`{MODULE}`: its `g_idx` puts an input into group {value}, and its groups "
            "are 0 to 2 (or -1 for all inputs)", at_load=True,
        )  # fmt: skip
    edit(folder, lambda tensors: tensors.update({name: torch.full_like(groups, -1)}))
    ours = load_decoder(folder, CPU, torch.float32)
    assert ours.get_submodule("blocks.1.mlp.down").order is None


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("method", ["fp8 blocks", "fp8 tensor", "fp8 rows"])
def test_codes_of_e4m3_that_are_no_numbers_are_refused(
    method: str, code: int, tmp_path: Path
) -> None:
    folder = written(tmp_path, method)

    def damaged(tensors: dict[str, Tensor]) -> None:
        tensors[f"{MODULE}.weight"].view(torch.uint8)[63, 95] = code

    edit(folder, damaged)
    refused(folder, f"`{MODULE}`: its `weight` has codes of e4m3 that are not a number",
            at_load=True)  # fmt: skip


@pytest.mark.parametrize("at", [0, SCANNED - 1, SCANNED, SCANNED + 4])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_every_code_is_looked_at(at: int, code: int) -> None:
    codes = torch.arange(256).repeat(2 + SCANNED // 256).to(torch.uint8)[: SCANNED + 5]
    codes[codes & 0x7F == 0x7F] = 0
    check_codes(codes.view(1, -1).view(E4M3))
    codes[at] = code
    with pytest.raises(CheckpointError, match="damaged"):
        check_codes(codes.view(1, -1).view(E4M3))


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("method", ["fp8 blocks", "fp8 rows"])
def test_codes_that_are_no_numbers_are_found_after_loading(
    method: str, code: int, device: torch.device, tmp_path: Path
) -> None:
    """As on a GPU, where they are looked at last."""
    folder = written(tmp_path, method)
    decoder = load_decoder(folder, device, torch.float32)
    check_numbers(decoder, folder)
    weight = decoder.get_submodule("blocks.1.mlp.down").weight
    weight.data.view(torch.uint8)[63, 95] = code
    with pytest.raises(CheckpointError, match=r"`blocks.1.mlp.down`: .* not a number .*damaged"):
        check_numbers(decoder, folder)


KINDS = {
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": E4M3,
    "F16": torch.float16,
    "I64": torch.int64,
}
EIGHT = ["fp8 blocks", "fp8 tensor", "fp8 rows", "int8 rows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", EIGHT)
def test_codes_of_another_type_are_refused_by_info_too(
    method: str, kind: str, bass_command: Callable[..., Said], tmp_path: Path
) -> None:
    right = "I8" if method == "int8 rows" else "F8_E4M3"
    if kind == right:
        return
    folder = written(tmp_path, method)
    name = f"{MODULE}.weight"
    edit(folder, lambda tensors: tensors.update({name: tensors[name].float().to(KINDS[kind])}))
    says = (f"`{name}` in `model.safetensors` is {kind} [64, 96], and", f"requires {right} of two")
    refused(folder, *says)
    if kind in ("F8_E5M2", "U8"):
        said = bass_command("info", str(folder))
        assert said.status == 2
        assert all(part in said.err for part in says)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["I16", "F8_E5M2", "BOOL", "F64"])
def test_no_part_of_another_type_is_a_traceback(method: str, kind: str, tmp_path: Path) -> None:
    dtype = KINDS.get(kind, {"BOOL": torch.bool, "F64": torch.float64}.get(kind))
    folder = written(tmp_path, method)
    stored = load_file(folder / "model.safetensors")
    for name in [name for name in stored if name.startswith(MODULE)]:
        other = stored[name].float().to(dtype)
        edit(folder, lambda tensors, name=name, other=other: tensors.update({name: other}))
        if name.endswith("input_scale"):  # is not read
            load_decoder(folder, CPU, torch.float32)
        else:
            refused(folder, f"`{name}` in `model.safetensors` is {kind}")
        edit(folder, lambda tensors, name=name: tensors.update({name: stored[name]}))


@pytest.mark.parametrize("size", [-1, 16, 48, 64, 128])
@pytest.mark.parametrize("method", ["gptq", "awq", "int4", "int8 packed", "int4 zeros"])
def test_another_size_of_groups_is_refused_with_both_shapes(
    method: str, size: int, tmp_path: Path
) -> None:
    folder = written(tmp_path, method)
    raw = json.loads((folder / "config.json").read_bytes())
    config = raw["quantization_config"]
    groups = config.get("config_groups")
    (groups["group_0"]["weights"] if groups else config)["group_size"] = size
    (folder / "config.json").write_text(json.dumps(raw))
    said = "in one group" if size == -1 else f"in groups of {size}"
    refused(folder, " is F16 [", "requires F32, F16 or BF16 [", said)


def test_scales_of_other_blocks_are_refused_with_both_shapes(tmp_path: Path) -> None:
    folder = written(tmp_path, "fp8 blocks")
    raw = json.loads((folder / "config.json").read_bytes())
    raw["quantization_config"]["weight_block_size"] = [GROUP, 64]
    (folder / "config.json").write_text(json.dumps(raw))
    refused(folder, "weight_scale_inv` in `model.safetensors` is F32 [", "(blocks of 32 x 64)")


@pytest.mark.parametrize("method", ["fp8 rows", "int8 weights"])
def test_a_scale_for_each_row_is_no_group(method: str, tmp_path: Path) -> None:
    """`group_size` next to scales for whole rows contradicts them."""
    refused(written(tmp_path, method, group_size=GROUP), "(groups of 32 of ")


SHAPES = {"other inputs": [64, 88], "too many": [64, 97], "swapped": [96, 64], "rows": [63, 96]}


@pytest.mark.parametrize("method", ["int4 zeros", "int8 packed", "fp8 rows"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_stored_shape_that_contradicts_the_tensors_is_refused(
    name: str, method: str, tmp_path: Path
) -> None:
    folder, tensor = written(tmp_path, method), f"{MODULE}.weight_shape"
    edit(folder, lambda tensors: tensors.update({tensor: torch.tensor(SHAPES[name])}))
    refused(folder, f"`{MODULE}.weight", f"requires {'I32 ' if 'int' in method else ''}[",
            "(by its `weight_shape`)")  # fmt: skip


def test_a_stored_shape_within_the_last_word_is_compared_with_the_model(tmp_path: Path) -> None:
    folder = written(tmp_path, "int4")
    shape = {f"{MODULE}.weight_shape": torch.tensor([64, 94])}
    edit(folder, lambda tensors: tensors.update(shape))
    with pytest.raises(CheckpointError, match=r"down_proj.weight \[64, 94\] instead of \[64, 96\]"):
        read_index(folder)


DOUBLED = {
    "gptq": ("weight", "weight", "qweight"),
    "awq": ("weight", "weight", "qweight"),
    "int4": ("weight", "weight", "weight_packed"),
    "fp8 blocks": ("weight_scale", "weight_scale", "weight_scale_inv"),
    "fp8 rows": ("weight_scale_inv", "weight_scale", "weight_scale_inv"),
}


@pytest.mark.parametrize("method", DOUBLED)
def test_what_is_stored_twice_is_refused(method: str, tmp_path: Path) -> None:
    folder, (more, one, other) = written(tmp_path, method), DOUBLED[method]
    edit(folder, lambda tensors: tensors.update({f"{MODULE}.{more}": torch.zeros(64, 96)}))
    refused(folder, f"both `{MODULE}.{one}` and `{MODULE}.{other}`, and which of the two is meant")


@pytest.mark.parametrize("method", ["fp8 blocks", "fp8 rows", "int8 rows", "gptq", "awq", "int4"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_scales_that_are_not_finite_are_refused_at_load(
    value: float, method: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, method)

    def damaged(tensors: dict[str, Tensor]) -> None:
        [role] = [n for n in tensors if n.startswith(f"{MODULE}.") and "scale" in n[len(MODULE) :]]
        tensors[role].view(-1)[-1] = value

    edit(folder, damaged)
    refused(folder, f"`{MODULE}`: its `", "has scales that are not finite", at_load=True)


@pytest.mark.parametrize("kind", EXPONENTS)
@pytest.mark.parametrize("at", [0, SCANNED // 4 - 1, SCANNED // 4 + 3])
def test_every_scale_is_looked_at(kind: str, at: int) -> None:
    dtype = KINDS_OF_FILES[kind]
    scales = torch.full((SCANNED // 4 + 4,), 254 if kind == "U8" else 2.0**127 / 2**112).to(dtype)
    check_scales("scales", kind, scales.view(torch.uint8))
    scales[at] = 255 if kind == "U8" else math.nan
    with pytest.raises(CheckpointError, match="`scales` has scales that are not finite"):
        check_scales("scales", kind, scales.view(torch.uint8))


@pytest.mark.parametrize("method", ["fp8 blocks", "fp8 rows", "int8 rows"])
def test_missing_scales_of_eight_bits_are_named(method: str, tmp_path: Path) -> None:
    folder = written(tmp_path, method)
    role = "weight_scale_inv" if method == "fp8 blocks" else "weight_scale"
    edit(folder, lambda tensors: tensors.pop(f"{MODULE}.{role}"))
    refused(folder, f"`{MODULE}` lacks its `{role}`, which its quantization_config requires")


def test_scales_by_the_names_of_mistral_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path, "fp8 tensor")

    def renamed(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.endswith(".weight_scale")]:
            tensors[name.replace("weight_scale", "qscale_weight")] = tensors.pop(name)

    edit(folder, renamed)
    with pytest.raises(CheckpointError, match=r"Mistral's own format .*use the checkpoint in the"):
        read_index(folder)
