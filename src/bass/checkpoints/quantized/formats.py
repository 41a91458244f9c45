"""How a quantized matrix is stored: the tensors of each format, and what config.json says of them.

    format      codes                            scales                       others
    eight-bit   .weight e4m3 or int8 [out, in]   .weight_scale(_inv) [],      .weight_zero_point,
                                                 [out, 1], [out, groups] or   .weight_g_idx
                                                 [blocks, blocks]
    packed      .weight_packed [out, in/8]       .weight_scale [out, groups]  .weight_zero_point,
                                                                              .weight_g_idx
    gptq        .qweight [in/8, out]             .scales [groups, out]        .qzeros, .g_idx
    awq         .qweight [in, out/8]             .scales [groups, out]        .qzeros
    mxfp4       _blocks [.., out, in/32, 16]     _scales [.., out, in/32]

A stack of experts in eight bits has one axis more, and is called `gate_up_proj`, with scales
`gate_up_proj_scale_inv`.

Words of 32 bits hold 8 codes of 4 bits (or 4 of 8), the first in the low bits; AWQ interleaves
the columns of a word. Two codes of a byte of MXFP4 are neighbours, the first in the low bits.
"""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Num
from safetensors import safe_open
from torch import Tensor

from bass.checkpoints.folder import some, stored_dtype
from bass.checkpoints.quantized.matrices import QuantizedStack, QuantizedWeight
from bass.checkpoints.shards import FLOATS, Stored, StoredQuantized, TensorFiles
from bass.errors import CheckpointError

Config = dict[str, Any]
Shape = tuple[int, ...]
AWQ_COLUMNS = [0, 4, 1, 5, 2, 6, 3, 7]  # of column c of eight, in its word
MXFP4_GROUP = 32
KIND_OF = {dtype: kind for kind, dtype in FLOATS.items()}
SCALES = ("weight_scale_inv", "weight_scale", "scales")  # their roles
_OF_WEIGHT = ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_g_idx")
_ROLES: dict[str, tuple[str, ...]] = {
    ".qweight": ("scales", "qzeros", "g_idx"),
    ".weight_packed": (*_OF_WEIGHT, "weight_shape"),
    ".weight": (*_OF_WEIGHT, "weight_shape"),
    "_blocks": ("scales",),
}
# the end of the name of a matrix's codes -> the roles of its tensors, and the ends of their names
ROLES: dict[str, dict[str, str]] = {
    end: {role: end[0] + role for role in (end[1:], *others)} for end, others in _ROLES.items()
} | {"_proj": {"weight": "_proj", "weight_scale_inv": "_proj_scale_inv"}}
# scales of activations, which have dynamic ones here, and of caches, which are not quantized
UNUSED = re.compile(
    r"(\.|_proj_)(input|activation|output|[kvq]|kv|prob|prob_output)_(scale|zero_point|scale_ub)$"
)


@dataclass(frozen=True)
class Layout:
    """A matrix as the config of a checkpoint describes it.

    format: of the table above. kind: of the codes, "int4", "int8", "e4m3" or "e2m1". group: the
    inputs of a row with one scale; None: all. block: rows and columns with one scale. activations:
    x is quantized, too. symmetric: all zero points are the middle of the codes. ordered: `g_idx`
    orders the inputs. offset: how much smaller the stored zero points of GPTQ are.
    """

    format: str
    kind: str
    group: int | None = None
    block: tuple[int, int] | None = None
    activations: bool = False
    symmetric: bool = False
    ordered: bool = True
    offset: int = 1

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return 4 if self.kind in ("int4", "e2m1") else 8

    def shape(self, stored: Mapping[str, Stored]) -> Shape:
        """The shape by the tensors; stacks are [.., in, out] in MXFP4, [.., out, in] in 8 bits."""
        codes, per_word = next(iter(stored.values())).shape, 32 // self.bits
        if self.format == "mxfp4":
            *stack, out, groups, _ = codes
            return (*stack, groups * MXFP4_GROUP, out)
        if self.format == "gptq":
            return codes[1], codes[0] * per_word
        if self.format == "awq":
            return codes[1] * per_word, codes[0]
        if self.format == "packed":
            if (numbers := stored.get("weight_shape")) is not None:  # read with the headers
                with safe_open(numbers.path, "pt") as file:
                    return tuple(file.get_tensor(numbers.name).tolist())
            return codes[0], codes[1] * per_word
        return codes

    def scales(self, shape: Shape) -> list[Shape]:
        """The shapes that the scales of such a matrix may have."""
        if self.format == "mxfp4":
            *stack, size, out = shape
            return [(*stack, out, size // MXFP4_GROUP)]
        *stack, out, size = shape
        rows, columns = self.block or (1, min(self.group or size, size))
        grid = *stack, -(-out // rows), -(-size // columns)
        if self.format in ("gptq", "awq"):
            return [grid[::-1]]
        single = self.format == "eight-bit" and self.block is None and self.group is None
        if stack and single:
            return [grid, (*stack, 1, 1)]
        return [grid, (), (1,), (1, 1), (out,)] if single else [grid]

    def fits(self, stored: Mapping[str, Stored]) -> bool:
        """Whether these are the tensors of a matrix that compressed-tensors has in this layout."""
        codes, shape = next(iter(stored.values())), self.shape(stored)
        if self.format == "packed":
            words = -(-shape[-1] * self.bits // 32)
            known = "weight_packed" in stored and codes.shape[-1] == words
        else:
            known = codes.kind == {"int8": "I8", "e4m3": "F8_E4M3"}.get(self.kind)
        return known and _scale_of(stored).shape in self.scales(shape)

    def weight(
        self, parts: Mapping[str, Tensor], shape: Shape, folder: Path | None = None
    ) -> QuantizedWeight | QuantizedStack:
        """The matrix of this shape, unpacked from the values of its tensors by role.

        Raises `CheckpointError`, with the `folder`, for zero points that contradict `symmetric`.
        """
        if self.format == "mxfp4":
            return QuantizedStack(parts["blocks"], parts["scales"])
        if self.format == "eight-bit":
            return self._eight_bit(parts, shape)
        group, order = self.group or shape[1], None
        scale, zero = _scale_of(parts), None
        if self.format == "packed":
            codes = unpacked_words(parts["weight_packed"], self.bits)[:, : shape[1]]
            scale, stored = scale.T, parts.get("weight_zero_point")
            if stored is not None:  # packed along the rows
                zero = self._signed(unpacked_words(stored.T, self.bits)[:, : len(codes)])
            order = _order(parts.get("weight_g_idx"), group, len(scale))
        elif self.format == "gptq":
            codes = unpacked_words(parts["qweight"].T, self.bits)
            points = unpacked_words(parts["qzeros"], self.bits) + self.offset
            points &= (1 << self.bits) - 1  # wraps around, as the codes do
            if not self.symmetric:
                zero = self._signed(points)
            elif not points.is_meta:
                self._check_middle(points, folder)
            order = _order(parts.get("g_idx"), group, len(scale), self.ordered)
        else:
            words = (unpacked_words(parts[role], 4) for role in ("qweight", "qzeros"))
            codes, zero = (w.unflatten(-1, (-1, 8))[..., AWQ_COLUMNS].flatten(-2) for w in words)
            codes = codes.T
        return QuantizedWeight(self.kind, self._signed(codes), scale, zero, group, order)

    def _check_middle(self, points: Tensor, folder: Path | None) -> None:
        """Check zero points of a symmetric matrix, which is computed without them."""
        low, high, middle = int(points.min()), int(points.max()), 1 << self.bits - 1
        other = middle - 1 + 2 * self.offset  # by the other `checkpoint_format`
        if low != high or low not in (middle, other):
            raise CheckpointError(
                f"`{folder}` has `sym: true` and zero points from {low} to {high}: correct `sym` "
                "in its quantization config, or use another quantization of the model."
            )
        if low != middle:
            warnings.warn(
                f"`{folder}` has `sym: true` and zero points of {low} instead of {middle}: it is "
                f"computed with {middle}, the middle of the codes, since `checkpoint_format` in "
                "its quantization config is probably wrong.",
                stacklevel=2,
            )

    def _eight_bit(self, parts: Mapping[str, Tensor], shape: Shape) -> QuantizedWeight:
        """The matrices of a stack are one below the other."""
        codes, scale, (*stack, out, size) = parts["weight"].flatten(0, -2), _scale_of(parts), shape
        count = math.prod(stack)
        single = scale.numel() == count and self.block is None and self.group is None
        rows, columns = self.block or (out if single else 1, min(self.group or size, size))

        def by_input(values: Tensor) -> Tensor:
            values = values.reshape(count, -(-out // rows), -(-size // columns))
            return values.repeat_interleave(rows, 1)[:, :out].flatten(0, 1).T

        scale = by_input(scale if scale.dtype.itemsize > 1 else scale.float())
        zero = parts.get("weight_zero_point")
        zero = None if zero is None or not (zero.is_meta or zero.any()) else by_input(zero)
        order = _order(parts.get("weight_g_idx"), columns, len(scale))
        both = self.activations and columns == size and zero is None
        activations = codes.dtype if both else None
        return QuantizedWeight(self.kind, codes, scale, zero, columns, order, activations)

    def _signed(self, codes: Num[Tensor, "*shape"]) -> Num[Tensor, "*shape"]:
        """Codes of 8 bits around 0; those of 4 bits stay around 8."""
        return codes if self.bits == 4 else (codes.to(torch.int16) - 128).to(torch.int8)

    def in_words(self, matrix: StoredQuantized) -> str:
        """The codes of a matrix, and what has a scale, for people."""
        if self.block is not None:
            return f"{self.kind}, a scale for blocks of {self.block[0]} x {self.block[1]}"
        scales, matrices = _scale_of(matrix.parts).shape, math.prod(matrix.shape[:-2])
        if math.prod(scales) == matrices < math.prod(matrix.shape[:-1]):
            return f"{self.kind}, one scale each"
        group = MXFP4_GROUP if self.format == "mxfp4" else self.group
        return f"{self.kind}, a scale for " + (f"groups of {group}" if group else "each row")


def unpacked_words(words: Num[Tensor, "*rest words"], bits: int) -> Num[Tensor, "*rest codes"]:
    """The unsigned codes in words of 32 bits, the first in the low bits."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def _scale_of(parts: Mapping[str, Any]) -> Any:
    return next(parts[role] for role in SCALES if role in parts)


def _order(stored: Tensor | None, group: int, groups: int, ordered: bool = True) -> Tensor | None:
    """The group of each input; None where they are in order (without values: not `ordered`)."""
    if stored is None or groups == 1:
        return None
    if stored.is_meta:
        return stored if ordered else None
    in_order = torch.arange(len(stored), device=stored.device) // group
    is_none = torch.equal(stored.long(), in_order) or bool((stored == -1).all())
    return None if is_none else stored


LayoutsOf = Callable[[str], list[Layout]]  # by the name of a module: the first that fits counts


def _fp8(config: Config) -> LayoutsOf:
    """In blocks (Qwen, DeepSeek), or with a scale for the matrix or for each row."""
    block = config.get("weight_block_size")
    sides = None if block is None else (block[0], block[1])
    layout = Layout("eight-bit", "e4m3", block=sides, activations=block is None)
    return lambda module: [layout]


def _gptq(config: Config) -> LayoutsOf:
    """GPTQ of 4 or 8 bits; `dynamic` overrides fields where a pattern matches a module's name."""
    overrides = [
        (pattern.removeprefix("+:"), _gptq_layout(config | fields))
        for pattern, fields in (config.get("dynamic") or {}).items()
        if not pattern.startswith("-:")  # of exclusions the tensors tell
    ]
    everywhere = _gptq_layout(config)
    return lambda module: [
        *(layout for pattern, layout in overrides if re.match(pattern, module)),
        everywhere,
    ]


def _gptq_layout(config: Config) -> Layout:
    bits = _one_of(config, "bits", (4, 8))
    field = "checkpoint_format" if config.get("checkpoint_format") else "format"
    version = _one_of(config, field, ("gptq", "gptq_v2"))
    return Layout(
        "gptq",
        f"int{bits}",
        _group(config),
        symmetric=bool(config.get("sym")),
        ordered=bool(config.get("desc_act")),
        offset=int(version == "gptq"),
    )


def _awq(config: Config) -> LayoutsOf:
    """AWQ of 4 bits in the layout `gemm`; `qzeros` are stored with `zero_point=False`, too."""
    _one_of(config, "bits", (4,))
    _one_of(config, "version", ("gemm", "GEMM"))
    layout = Layout("awq", "int4", _group({"group_size": 128} | config))
    return lambda module: [layout]


def _auto_round(config: Config) -> LayoutsOf:
    """AutoRound in the layout of GPTQ or AWQ; `extra_config` overrides fields by module."""
    known = [start + name for start in ("auto_round:", "") for name in ("auto_gptq", "auto_awq")]
    packing = _one_of({"packing_format": ""} | config, "packing_format", known)
    if packing.endswith("awq"):
        return _awq(config)
    extra: dict[str, Config] = config.get("extra_config") or {}
    # modules of 16 bits are recognized by their tensors
    own = {f"{name}$": fields for name, fields in extra.items() if fields.get("bits") != 16}
    return _gptq(config | {"dynamic": own})


def _compressed_tensors(config: Config) -> LayoutsOf:
    """Groups of modules, each with a layout: a target is a module's name, a pattern `re:...`, or
    the class `Linear`; the kinds of targets precede in this order, then the alphabetical one.
    """
    for field in ("sparsity_config", "transform_config"):
        _one_of(config.get(field) or {"format": "dense"}, "format", ("dense",))
    layouts = [
        (target, _compressed(group, config))
        for group in config.get("config_groups", {}).values()
        if group.get("weights") is not None  # of others activations or caches are quantized
        for target in group["targets"]
    ]

    def layouts_of(module: str) -> list[Layout]:
        matching = [
            (0 if target == module else 2 if target == "Linear" else 1, target, layout)
            for target, layout in layouts
            if target in (module, "Linear")
            or (target.startswith("re:") and re.match(target[3:], module))
        ]
        if not matching:
            raise CheckpointError(f"no target of its `config_groups` is `{module}`")
        return [layout for *_, layout in sorted(matching, key=lambda one: one[:2])]

    return layouts_of


def _compressed(group: Config, config: Config) -> Layout:
    weights, inputs = group["weights"], group.get("input_activations") or {}
    known = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
    form = _one_of(group if group.get("format") else config, "format", known)
    is_packed = form == "pack-quantized"
    kind = _one_of(weights, "type", ("int",) if is_packed else ("int", "float"))
    bits = _one_of(weights, "num_bits", (4, 8) if is_packed else (8,))
    if is_packed:
        return Layout("packed", f"int{bits}", _group(weights))
    block = weights.get("block_structure") if weights.get("strategy") == "block" else None
    if isinstance(block, str):  # "128x128"
        block = [int(side) for side in block.split("x")]
    both = inputs.get("type", "int") == kind and inputs.get("num_bits") == 8
    sides = None if block is None else (block[0], block[1])
    codes = "int8" if kind == "int" else "e4m3"
    return Layout("eight-bit", codes, _group(weights), sides, both)


METHODS: dict[str, Callable[[Config], LayoutsOf]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "mxfp4": lambda config: lambda module: [Layout("mxfp4", "e2m1")],
}


def _one_of(config: Config, field: str, known: Sequence[Any]) -> Any:
    """The value of a field, by default the first known one."""
    value = known[0] if config.get(field) is None else config[field]
    if value not in known:
        raise CheckpointError(f"`{field}={value!r:.100}` is none of {[*known]}")
    return value


def _group(config: Config) -> int | None:
    """Inputs of a group; None: all."""
    return None if config.get("group_size") == -1 else config.get("group_size")


def declared(raw: Config) -> Config | None:
    """The `quantization_config` of a parsed config.json."""
    of_text = (raw.get("text_config") or {}).get("quantization_config")
    return raw.get("quantization_config") or of_text or None


def described(files: TensorFiles, whole: Config, raw: Config) -> TensorFiles:
    """The files with the method by which they are quantized, and each quantized matrix as one
    tensor, under its own name and shape.

    whole: the parsed config.json. raw: that of its text half. What is quantized follows from the
    tensors: a matrix is where there are codes and scales. A `CheckpointError` names what is not
    read.
    """
    if (config := declared(whole)) is None:
        return files
    method = str(config.get("quant_method")).lower()
    if method not in METHODS:
        what = f"is quantized by `{config.get('quant_method')}`"
        if config.get("quant_method") is None:
            held = (f"`{name}={value!r:.40}`" for name, value in config.items())
            what = f"has a `quantization_config` without `quant_method`, of {some(held)}"
        raise CheckpointError(
            f"`{files.folder}` {what}, which `bass` does not read: use the original checkpoint, or "
            f"one quantized by {', '.join(METHODS)}."
        )
    try:
        stored = _with_matrices(files.stored, METHODS[method](config), stored_dtype(raw))
        return replace(files, stored=stored, method=method)
    except CheckpointError as error:
        raise CheckpointError(
            f"`{files.folder}` is quantized by {method} in a form that `bass` does not read: "
            f"{error}; use the original checkpoint, or another quantization of it."
        ) from error


def _with_matrices(
    stored: Mapping[str, Stored], layouts_of: LayoutsOf, dtype: torch.dtype | None
) -> dict[str, Stored]:
    rest = {name: t for name, t in stored.items() if not UNUSED.search(name)}
    found: dict[str, Stored] = {}
    for name, codes in [*rest.items()]:
        end = next((end for end in ROLES if name.endswith(end)), "")
        module, ends = name.removesuffix(end), ROLES.get(end, {})
        parts = {role: rest[module + own] for role, own in ends.items() if module + own in rest}
        if parts.keys().isdisjoint(SCALES):
            continue
        layouts = layouts_of(module)
        fitting = (one for one in layouts if one.fits(parts))  # reads a file
        layout = layouts[0] if len(layouts) == 1 else next(fitting, layouts[0])
        shape, scale = layout.shape(parts), _scale_of(parts)
        if scale.shape not in (shapes := layout.scales(shape)):
            raise CheckpointError(
                f"`{module}` has scales of {[*scale.shape]} instead of "
                f"{' or '.join(str([*one]) for one in shapes)}"
            )
        kind = KIND_OF[dtype or torch.bfloat16]
        own = {"_blocks": module, "_proj": name}.get(end, f"{module}.weight")
        found[own] = StoredQuantized(codes.path, name, kind, shape, parts, layout)
        for role in parts:
            del rest[module + ends[role]]
    return rest | found


def summary(files: TensorFiles) -> str:
    """The method, and how many matrices have which bits and groups; empty without a method."""
    matrices = [t for t in files.stored.values() if isinstance(t, StoredQuantized)]
    counts = Counter(matrix.layout.in_words(matrix) for matrix in matrices)
    forms = (f"{n} {'matrix' if n == 1 else 'matrices'} in {w}" for w, n in counts.items())
    return f"{files.method}: {'; '.join(forms) or 'no matrix'}" if files.method else ""
