"""Quantized checkpoints as other tools write them: a few lines for each method, with the matrix
that the tensors stand for.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Stored = dict[str, Tensor]
Written = tuple[Stored, Tensor]  # the tensors of a module, and its matrix in float32
E4M3 = torch.float8_e4m3fn
GROUP = 32
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def words(codes: Tensor, bits: int = 4) -> Tensor:
    """Codes along the last axis in words of 32 bits, the first in the low bits."""
    per_word = 32 // bits
    parts = codes.to(torch.int64).unflatten(-1, (-1, per_word))
    total = sum(parts[..., i] << bits * i for i in range(per_word))
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)  # type: ignore[operator]


def in_groups(w: Tensor, groups_of: Tensor) -> Iterator[tuple[int, Tensor]]:
    for group in range(int(groups_of.max()) + 1):
        yield group, groups_of == group


def rounded(
    w: Tensor, groups_of: Tensor, top: int, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unsigned codes 0..top [out, in], scales and zero points [out, groups], and the matrix."""
    codes, groups = torch.empty_like(w), int(groups_of.max()) + 1
    scale, zero = torch.empty(len(w), groups), torch.empty(len(w), groups)
    for group, inside in in_groups(w, groups_of):
        part = w[:, inside]
        if symmetric:
            scale[:, group] = part.abs().amax(1) / (top // 2)
            zero[:, group] = (top + 1) // 2
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale[:, group] = (high - low) / top
            zero[:, group] = (-low / scale[:, group]).round()
        scale[:, group] = scale[:, group].half().float()
        s, z = scale[:, group, None], zero[:, group, None]
        codes[:, inside] = (part / s + z).round().clamp(0, top)
    meant = (codes - zero[:, groups_of]) * scale[:, groups_of]
    return codes, scale, zero, meant


def order_of(size: int) -> Tensor:
    return torch.arange(size) // GROUP


def gptq(
    w: Tensor, bits: int = 4, symmetric: bool = False, shuffled: bool = False, offset: int = 1
) -> Written:
    groups_of = order_of(w.shape[1])
    if shuffled:
        groups_of = groups_of[torch.randperm(len(groups_of), generator=seeded(w.shape[1]))]
    codes, scale, zero, meant = rounded(w, groups_of, 2**bits - 1, symmetric)
    return {
        "qweight": words(codes, bits).T.contiguous(),
        "qzeros": words((zero.T - offset) % 2**bits, bits),
        "scales": scale.T.half().contiguous(),
        "g_idx": groups_of.to(torch.int32),
    }, meant


def awq(w: Tensor) -> Written:
    codes, scale, zero, meant = rounded(w, order_of(w.shape[1]), 15, False)

    def interleaved(columns: Tensor) -> Tensor:
        return words(columns.unflatten(-1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(-2))

    return {
        "qweight": interleaved(codes.T),
        "qzeros": interleaved(zero.T),
        "scales": scale.T.half().contiguous(),
    }, meant


def packed(w: Tensor, bits: int = 4, symmetric: bool = True, shuffled: bool = False) -> Written:
    groups_of = order_of(w.shape[1])
    if shuffled:
        groups_of = groups_of[torch.randperm(len(groups_of), generator=seeded(w.shape[1]))]
    codes, scale, zero, meant = rounded(w, groups_of, 2**bits - 1, symmetric)
    stored = {
        "weight_packed": words(codes, bits),
        "weight_scale": scale.half(),
        "weight_shape": torch.tensor(w.shape),
    }
    if not symmetric:
        stored["weight_zero_point"] = words(zero.T, bits).T.contiguous()
    if shuffled:
        stored["weight_g_idx"] = groups_of.to(torch.int32)
    return stored, meant


def fp8_blocks(w: Tensor, side: int = GROUP) -> Written:
    rows, columns = (torch.arange(size) // side for size in w.shape)
    scale = torch.zeros(int(rows.max()) + 1, int(columns.max()) + 1)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            scale[i, j] = w[rows == i][:, columns == j].abs().max() / 448
    codes = (w / scale[rows][:, columns]).to(E4M3)
    meant = codes.float() * scale[rows][:, columns]
    return {"weight": codes, "weight_scale_inv": scale}, meant


def eight_bits(w: Tensor, kind: torch.dtype, rows: bool, static: bool = False) -> Written:
    top = 448 if kind == E4M3 else 127
    largest = w.abs().amax(1, keepdim=True) if rows else w.abs().max()
    scale = (largest / top).bfloat16()
    codes = w / scale.float()
    codes = (codes if kind == E4M3 else codes.round().clamp(-127, 127)).to(kind)
    stored = {"weight": codes, "weight_scale": scale}
    if static:
        stored["input_scale"] = torch.tensor(0.1)
    return stored, codes.float() * scale.float()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def compressed(weights: dict[str, Any], layout: str, inputs: dict[str, Any] | None = None) -> Any:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
INT8, FLOAT8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
DYNAMIC = {"strategy": "token", "dynamic": True}
GPTQ4 = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
# name: what config.json says, how a matrix is stored
METHODS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Written]]] = {
    "fp8 blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [GROUP] * 2},
        fp8_blocks,
    ),
    "fp8 tensor": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        lambda w: eight_bits(w, E4M3, False, True),
    ),
    "fp8 rows": (
        compressed(FLOAT8 | {"strategy": "channel"}, "float-quantized", FLOAT8 | DYNAMIC),
        lambda w: eight_bits(w, E4M3, True),
    ),
    "int8 rows": (
        compressed(INT8 | {"strategy": "channel"}, "int-quantized", INT8 | DYNAMIC),
        lambda w: eight_bits(w, torch.int8, True),
    ),
    "int8 weights": (
        compressed(INT8 | {"strategy": "channel"}, "int-quantized"),
        lambda w: eight_bits(w, torch.int8, True),
    ),
    "int8 packed": (compressed(INT4 | {"num_bits": 8}, "pack-quantized"), lambda w: packed(w, 8)),
    "int4": (compressed(INT4, "pack-quantized"), packed),
    "int4 zeros": (
        compressed(INT4 | {"symmetric": False}, "pack-quantized"),
        lambda w: packed(w, symmetric=False),
    ),
    "int4 order": (
        compressed(INT4 | {"actorder": "group"}, "pack-quantized"),
        lambda w: packed(w, shuffled=True),
    ),
    "gptq": (GPTQ4, gptq),
    "gptq symmetric": (GPTQ4 | {"sym": True}, lambda w: gptq(w, symmetric=True)),
    "gptq order": (GPTQ4 | {"desc_act": True}, lambda w: gptq(w, shuffled=True)),
    "gptq v2": (GPTQ4 | {"checkpoint_format": "gptq_v2"}, lambda w: gptq(w, offset=0)),
    "gptq 8": (GPTQ4 | {"bits": 8}, lambda w: gptq(w, 8)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
}


def write_quantized(
    source: Path,
    folder: Path,
    config: dict[str, Any],
    store: Callable[[Tensor], Written],
    skip: tuple[str, ...] = (),
) -> tuple[Path, Path]:
    """The checkpoint of `source` quantized, and with the matrices that this stands for; a stack of
    experts is quantized one by one.
    """
    quantized, meant = folder / "quantized", folder / "meant"
    tensors = load_file(source / "model.safetensors")
    ours, theirs = dict(tensors), {name: t.float() for name, t in tensors.items()}
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        if not module.endswith(skip or ("?",)):
            stored, matrix = store(ours.pop(name).float())
            ours |= {f"{module}.{role}": tensor.contiguous() for role, tensor in stored.items()}
            theirs[name] = matrix
    for name in [n for n in tensors if n.endswith("_proj")]:
        stacks = [store(matrix.float()) for matrix in ours.pop(name)]
        for role in stacks[0][0]:
            stack = torch.stack([s[role] for s, _ in stacks])
            end = {"weight": "", "input_scale": "_activation_scale"}.get(role, "_scale_inv")
            ours[name + end] = stack.view(-1, 1, 1) if stack.dim() == 1 else stack
        theirs[name] = torch.stack([matrix for _, matrix in stacks])
    raw = json.loads((source / "config.json").read_bytes()) | {"torch_dtype": "float16"}
    for path, held, more in (
        (quantized, ours, {"quantization_config": config}),
        (meant, theirs, {}),
    ):
        path.mkdir(parents=True)
        save_file(held, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(raw | more))
    return quantized, meant
