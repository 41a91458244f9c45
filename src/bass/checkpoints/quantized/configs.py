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
QUANTIZED_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
# patterns of modules that are matched in little time
PATTERN, MOST_STARS = re.compile(r"(?:[\w^$|()\[\]?-]|\\.|\.[*]?)+"), 3


def fp8(config: dict[str, Any]) -> FormatOf:
    """Of Qwen and DeepSeek in blocks, or with a scale for the matrix."""
    block = config.get("weight_block_size")
    return _everywhere(EightBits(block is None, None if block is None else _block(block)))


def fbgemm_fp8(config: dict[str, Any]) -> FormatOf:
    """A scale for each row."""
    return _everywhere(EightBits(activations=True))


def gptq(config: dict[str, Any]) -> FormatOf:
    """GPTQ of 4 or 8 bits."""
    bits, group = _bits(config.get("bits"), "gptq"), _group(config.get("group_size", -1))
    layout = config.get("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2") or config.get("is_marlin_format"):
        raise _unread("gptq", "checkpoint_format", layout if layout != "gptq" else "marlin")
    # of exclusions the tensors tell
    if overrides := [n for n in config.get("dynamic") or () if not str(n).startswith("-:")]:
        raise _unread("gptq", "dynamic", overrides[0])
    symmetric, ordered = (config.get(field) is True for field in ("sym", "desc_act"))
    return _everywhere(GPTQ(bits, group, symmetric, ordered, int(layout == "gptq")))


def awq(config: dict[str, Any]) -> FormatOf:
    """AWQ of 4 bits in the layout `gemm`."""
    if (bits := config.get("bits", config.get("w_bit", 4))) != 4:
        raise _unread("awq", "bits", bits)
    if str(version := config.get("version", "gemm")).lower() != "gemm":
        raise _unread("awq", "version", version)
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
    size = weights.get("group_size")
    columns = None if size is None else _group(size)
    if layout == "pack-quantized" and kind == "int":
        return PackedRows(_bits(bits, "compressed-tensors"), columns)
    if layout == "pack-quantized" or kind not in ("int", "float") or bits != 8:
        raise _unread("compressed-tensors", "weights", f"{bits}-bit {kind}")
    both = (
        isinstance(inputs, dict)
        and inputs.get("type", "int") == kind
        and inputs.get("num_bits") == 8
    )
    block = weights.get("block_structure") if weights.get("strategy") == "block" else None
    if isinstance(block, str):  # "128x128"
        block = [int(side) if side.isdecimal() else side for side in block.split("x")]
    return EightBits(both, None if block is None else _block(block), columns)


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
            except re.error as error:
                raise _unread("compressed-tensors", "targets", target) from error
    names = set(targets)
    return lambda module: (
        "Linear" in names or module in names or any(p.match(module) for p in patterns)
    )


def _bits(bits: Any, method: str) -> int:
    if bits not in (4, 8) or isinstance(bits, float):
        raise _unread(method, "bits", bits)
    return int(bits)


def _group(size: Any) -> int | None:
    """Inputs of a group; None: all."""
    if type(size) is not int or not (size == -1 or 1 <= size <= WIDEST):
        raise CheckpointError(
            f"Its quantization_config has `group_size={size!r:.100}`, which is no size: correct "
            "it, or download it again."
        )
    return None if size == -1 else size


def _block(block: Any) -> tuple[int, int]:
    sides = block if isinstance(block, list) else []
    if len(sides) != 2 or not all(type(n) is int and 1 <= n <= WIDEST for n in sides):
        raise CheckpointError(
            f"Its quantization_config has the blocks {block!r:.100}, which are no two sizes: "
            "correct it, or download it again."
        )
    return sides[0], sides[1]


def _unread(method: str, field: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"It is quantized by {method} with `{field}={value!r:.100}`, which `bass` does not read: "
        "use the original checkpoint, or another quantization of it."
    )
