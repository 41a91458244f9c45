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
    FormatOf,
    PackedRows,
)
from bass.errors import CheckpointError

WIDEST = 1 << 24  # of a group or block
# of compressed-tensors
STRATEGIES = (None, "tensor", "channel", "group", "block")
# whether the inputs are ordered by groups (`g_idx`), or only were quantized in an order
ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False}
QUANTIZED_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
# patterns of modules that are matched in little time
PATTERN, MOST_STARS = re.compile(r"(?:[\w^$|()\[\]?-]|\\.|\.[*]?)+"), 3


def fp8(config: dict[str, Any]) -> FormatOf:
    """Of Qwen and DeepSeek in blocks, or with a scale for the matrix."""
    block = config.get("weight_block_size")
    return _everywhere(
        EightBits("F8_E4M3", block is None, None if block is None else _block(block))
    )


def fbgemm_fp8(config: dict[str, Any]) -> FormatOf:
    """A scale for each row."""
    return _everywhere(EightBits("F8_E4M3", activations=True))


def gptq(config: dict[str, Any]) -> FormatOf:
    """GPTQ of 4 or 8 bits."""
    bits, group = _bits(config.get("bits"), "gptq"), _group(config.get("group_size", -1))
    layout = _given(config, "checkpoint_format", _given(config, "format", "gptq"))
    if _flag(config, "is_marlin_format"):
        layout = "marlin"
    if str(layout).lower() not in ("gptq", "gptq_v2"):
        raise _unread("gptq", "checkpoint_format", layout)
    dynamic = _given(config, "dynamic", {})
    if not isinstance(dynamic, dict):
        raise _wrong("dynamic", dynamic, "no object")
    # of exclusions the tensors tell
    if overrides := [name for name in dynamic if not name.startswith("-:")]:
        raise _unread("gptq", "dynamic", overrides[0])
    ordered = _flag(config, "desc_act")
    needs = (("g_idx", "desc_act=True"),) if ordered and group is not None else ()
    offset = int(str(layout).lower() == "gptq")
    return _everywhere(GPTQ(bits, group, _flag(config, "sym"), ordered, offset, needs))


def awq(config: dict[str, Any]) -> FormatOf:
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


def mxfp4(config: dict[str, Any]) -> FormatOf:
    """Blocks of 32 with an exponent each."""
    return _everywhere(MXFP4())


def compressed_tensors(config: dict[str, Any]) -> FormatOf:
    """Groups of modules, each with a format."""
    for field in ("sparsity_config", "transform_config"):
        given = config.get(field)
        if given and not (isinstance(given, dict) and given.get("format") == "dense"):
            raise _unread("compressed-tensors", field, given)
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _unread("compressed-tensors", "config_groups", groups)
    found = [
        (_targets(group), _compressed(group, group.get("format") or config.get("format")))
        for group in (g if isinstance(g, dict) else {} for g in groups.values())
    ]
    if len({form for _, form in found}) == 1:
        return _everywhere(found[0][1])
    matches = [(_matcher(targets), form) for targets, form in found]

    def format_of(module: str) -> Format:
        for matched, form in matches:
            if matched(module):
                return form
        raise CheckpointError(
            f"No group of its quantization_config describes `{module[:100]}`: the files do not "
            "belong together."
        )

    return format_of


FORMATS: dict[str, Callable[[dict[str, Any]], FormatOf]] = {
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
    "mxfp4": mxfp4,
}


def _everywhere(form: Format) -> FormatOf:
    return lambda module: form


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


def _matcher(targets: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a module is among the targets: a class, a name, or a pattern `re:...`."""
    patterns = []
    for target in targets:
        if target.startswith("re:"):
            source = target.removeprefix("re:")
            if not PATTERN.fullmatch(source) or source.count("*") > MOST_STARS:
                raise _unread("compressed-tensors", "targets", target)
            try:
                patterns.append(re.compile(source))
            except (re.error, RecursionError) as error:
                raise _unread("compressed-tensors", "targets", target) from error
    names = set(targets)
    return lambda module: (
        "Linear" in names or module in names or any(p.match(module) for p in patterns)
    )


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
