"""The fields of each method's quantization_config."""

import re
from collections.abc import Callable
from typing import Any

from bass.checkpoints.quantized.formats import (
    AWQ,
    GPTQ,
    MXFP4,
    EightBits,
    Format,
    FormatsOf,
    PackedRows,
)
from bass.checkpoints.quantized.targets import by_pattern, by_target
from bass.errors import CheckpointError

WIDEST = 1 << 24  # of a group or block
# of compressed-tensors
STRATEGIES = (None, "tensor", "channel", "group", "block")
# whether the inputs are ordered by groups (`g_idx`), or only were quantized in an order
ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False}
QUANTIZED_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
# of AutoRound: the layout of a matrix -> method
PACKINGS = {"auto_gptq": "gptq", "gptq": "gptq", "auto_awq": "awq", "awq": "awq"}
UNQUANTIZED = 16  # bits that AutoRound leaves as they are
# fields of a layer that decide its layout, with their defaults
DECIDING = {
    "bits": None,
    "group_size": None,
    "sym": None,
    "data_type": "int",
    "act_bits": UNQUANTIZED,
    "super_bits": None,
    "super_group_size": None,
}


def fp8(config: dict[str, Any]) -> FormatsOf:
    """Of Qwen and DeepSeek in blocks, or with a scale for the matrix."""
    block = config.get("weight_block_size")
    return _everywhere(
        EightBits("F8_E4M3", block is None, None if block is None else _block(block))
    )


def fbgemm_fp8(config: dict[str, Any]) -> FormatsOf:
    """A scale for each row."""
    return _everywhere(EightBits("F8_E4M3", activations=True))


def gptq(config: dict[str, Any]) -> FormatsOf:
    """GPTQ of 4 or 8 bits; `dynamic` overrides fields where a pattern matches a module's name."""
    everywhere, dynamic = _gptq(config), _given(config, "dynamic", {})
    if not isinstance(dynamic, dict):
        raise _wrong("dynamic", dynamic, "no object")
    own: dict[str, Format] = {}
    for pattern, fields in dynamic.items():
        if pattern.startswith("-:"):  # of exclusions the tensors tell
            continue
        if not isinstance(fields, dict):
            raise _wrong("dynamic", dynamic, "no object of objects")
        own[pattern.removeprefix("+:")] = _gptq(config | fields)
    if {*own.values()} <= {everywhere}:
        return _everywhere(everywhere)
    return lambda modules: dict.fromkeys(modules, everywhere) | by_pattern(own, modules)


def _gptq(config: dict[str, Any]) -> Format:
    bits, group = _bits(config.get("bits"), "gptq"), _group(config.get("group_size", -1))
    layout = _given(config, "checkpoint_format", _given(config, "format", "gptq"))
    if _flag(config, "is_marlin_format"):
        layout = "marlin"
    if str(layout).lower() not in ("gptq", "gptq_v2"):
        raise _unread("gptq", "checkpoint_format", layout)
    ordered = _flag(config, "desc_act")
    needs = (("g_idx", "desc_act=True"),) if ordered and group is not None else ()
    offset = int(str(layout).lower() == "gptq")
    return GPTQ(bits, group, _flag(config, "sym"), ordered, offset, needs)


def awq(config: dict[str, Any]) -> FormatsOf:
    """AWQ of 4 bits in the layout `gemm`; `qzeros` are stored with `zero_point=False`, too."""
    bits = config.get("bits", config.get("w_bit", 4))
    if _bits(bits, "awq") != 4:
        raise _unread("awq", "bits", bits)
    version = _given(config, "version", _given(config, "format", "gemm"))
    if str(version).lower() != "gemm":
        raise _unread("awq", "version", version)
    if (backend := config.get("backend")) == "llm-awq":
        raise _unread("awq", "backend", backend)
    return _everywhere(AWQ(_group(config.get("group_size", config.get("q_group_size", 128)))))


def mxfp4(config: dict[str, Any]) -> FormatsOf:
    """Blocks of 32 with an exponent each."""
    return _everywhere(MXFP4())


def compressed_tensors(config: dict[str, Any]) -> FormatsOf:
    """Groups of modules, each with a format."""
    for field in ("sparsity_config", "transform_config"):
        given = config.get(field)
        if given and not (isinstance(given, dict) and given.get("format") == "dense"):
            raise _unread("compressed-tensors", field, given)
    groups = config.get("config_groups")
    if not isinstance(groups, dict):
        raise _unread("compressed-tensors", "config_groups", groups)
    found: list[tuple[tuple[str, ...], Format]] = []
    for group in groups.values():
        if not isinstance(group, dict):
            raise _wrong("config_groups", groups, "no object of objects")
        if group.get("weights") is not None:  # of others activations or caches are quantized
            layout = group.get("format") or config.get("format")
            found.append((_targets(group), _compressed(group, layout)))
    if len({form for _, form in found}) == 1:
        return _everywhere(found[0][1])
    return lambda modules: by_target(found, modules)


def auto_round(config: dict[str, Any]) -> FormatsOf:
    """AutoRound in the layout of GPTQ or AWQ."""
    backend = str(config.get("backend") or "auto_round:gptq")
    method = backend.removeprefix("auto_round:").partition(":")[0]
    if config.get("packing_format") is None and method not in ("gptq", "awq"):
        raise _unread("auto-round", "backend", backend)  # 0.3, whose zero points are others
    layout = _given(config, "packing_format", method)
    method = PACKINGS.get(str(layout).removeprefix("auto_round:"))
    if method is None:
        raise _unread("auto-round", "packing_format", layout)
    if (kind := _given(config, "data_type", "int")) != "int":
        raise _unread("auto-round", "data_type", kind)
    if (bits := _given(config, "act_bits", UNQUANTIZED)) != UNQUANTIZED:
        raise _unread("auto-round", "act_bits", bits)
    everywhere = {field: _given(config, field, default) for field, default in DECIDING.items()}
    own = _given(config, "extra_config", {})
    for layer in own.values() if isinstance(own, dict) else (own,):
        if not isinstance(layer, dict):
            raise _unread("auto-round", "extra_config", own)
        fields = {field: _given(layer, field, everywhere[field]) for field in DECIDING}
        # of layers that are not quantized the tensors tell
        if fields["bits"] != UNQUANTIZED and fields != everywhere:
            raise _unread("auto-round", "extra_config", own)
    return gptq(config) if method == "gptq" else awq(config)


FORMATS: dict[str, Callable[[dict[str, Any]], FormatsOf]] = {
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "mxfp4": mxfp4,
}


def _everywhere(form: Format) -> FormatsOf:
    return lambda modules: dict.fromkeys(modules, form)


def _compressed(group: dict[str, Any], layout: Any) -> Format:
    if layout not in QUANTIZED_FORMATS:
        raise _unread("compressed-tensors", "format", layout)
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        raise _unread("compressed-tensors", "weights", weights)
    kind, bits = weights.get("type", "int"), weights.get("num_bits")
    columns, block = _parts_with_a_scale(weights)
    needs: tuple[tuple[str, str], ...] = ()
    if not _flag(weights, "symmetric", True):
        needs += (("weight_zero_point", "symmetric=False"),)
    if ordered := _ordered(weights.get("actorder")) and columns is not None:
        needs += (("weight_g_idx", f"actorder={weights['actorder']!r}"),)
    if layout == "pack-quantized" and kind == "int":
        return PackedRows(_bits(bits, "compressed-tensors"), columns, needs)
    of_eight = type(bits) is int and bits == 8
    if layout == "pack-quantized" or kind not in ("int", "float") or not of_eight:
        raise _unread("compressed-tensors", "weights", f"{bits}-bit {kind}")
    if ordered:
        raise _unread("compressed-tensors", "actorder", weights["actorder"])
    if not isinstance(inputs, dict | None):
        raise _wrong("input_activations", inputs, "no object")
    inputs = inputs or {}
    both = inputs.get("type", "int") == kind and inputs.get("num_bits") == 8
    return EightBits("I8" if kind == "int" else "F8_E4M3", both, block, columns, needs)


def _parts_with_a_scale(weights: dict[str, Any]) -> tuple[int | None, tuple[int, int] | None]:
    """Inputs of a group, and rows and columns of a block; None: there are none."""
    size, strategy = weights.get("group_size"), weights.get("strategy")
    if strategy not in STRATEGIES:
        raise _unread("compressed-tensors", "strategy", strategy)
    columns = _group(size) if size is not None or strategy == "group" else None
    if strategy != "block":
        return columns, None
    block = weights.get("block_structure")
    if isinstance(block, str):  # "128x128"
        sides = block.split("x")
        block = [int(side) if re.fullmatch("[0-9]{1,9}", side) else side for side in sides]
    return columns, _block(block)


def _ordered(order: Any) -> bool:
    """Whether `g_idx` orders the inputs."""
    if order is None or isinstance(order, bool):
        return bool(order)
    if not isinstance(order, str) or order.lower() not in ORDERS:
        raise _unread("compressed-tensors", "actorder", order)
    return ORDERS[order.lower()]


def _targets(group: dict[str, Any]) -> tuple[str, ...]:
    targets = group.get("targets")
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise _unread("compressed-tensors", "targets", targets)
    return tuple(targets)


def _bits(bits: Any, method: str) -> int:
    if bits not in (4, 8) or type(bits) is not int:
        raise _unread(method, "bits", bits)
    return bits


def _group(size: Any) -> int | None:
    """Inputs of a group; None: all."""
    if type(size) is not int or not (size == -1 or 1 <= size <= WIDEST):
        raise _wrong("group_size", size, "no size")
    return None if size == -1 else size


def _block(block: Any) -> tuple[int, int]:
    sides = block if isinstance(block, list) else []
    if len(sides) != 2 or not all(type(n) is int and 1 <= n <= WIDEST for n in sides):
        raise _wrong("weight_block_size", block, "no two sizes")
    return sides[0], sides[1]


def _flag(config: dict[str, Any], field: str, default: bool = False) -> bool:
    """A field that is true or false."""
    value = _given(config, field, default)
    if not isinstance(value, bool):
        raise _wrong(field, value, "neither true nor false")
    return value


def _given(config: dict[str, Any], field: str, default: Any) -> Any:
    """A field; null counts as absent."""
    return default if config.get(field) is None else config[field]


def _wrong(field: str, value: Any, kind: str) -> CheckpointError:
    return CheckpointError(
        f"Its quantization_config has `{field}={value!r:.100}`, which is {kind}: correct it, or "
        "download it again."
    )


def _unread(method: str, field: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"It is quantized by {method} with `{field}={value!r:.100}`, which `bass` does not read: "
        "use the original checkpoint, or another quantization of it."
    )
