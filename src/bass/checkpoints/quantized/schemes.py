"""The quantization of a checkpoint: its config.json gives a layout for each module, and the headers
tell which matrices are quantized.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bass.checkpoints.folder import read_json, some, stored_dtype
from bass.checkpoints.quantized.layouts import ROLES, Layout
from bass.checkpoints.shards import FLOATS, Stored, StoredQuantized, TensorFiles
from bass.errors import CheckpointError, OptionError, counted
from bass.interfaces import Quantization
from bass.quantization import NoQuantization

Config = dict[str, Any]
LayoutsOf = Callable[[str], list[Layout]]  # by the name of a module, the best first
KIND_OF = {dtype: kind for kind, dtype in FLOATS.items()}
# scales of activations, which have dynamic ones here, and of caches, which are not quantized
UNUSED = re.compile(
    r"[.](input_scale|input_zero_point|input_scale_ub|activation_scale|output_scale"
    r"|output_zero_point|([kvq]|kv)_scale|[kvq]_zero_point|prob_scale|prob_output_scale)$"
)
# whether the inputs are ordered by groups (`g_idx`), or only were quantized in an order
ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False, "true": True}
# of AutoRound: the packing -> method
PACKINGS = {"auto_gptq": "gptq", "gptq": "gptq", "auto_awq": "awq", "awq": "awq"}
# separate files of older exports -> method
SEPARATE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# ends of names that quantized checkpoints alone have
SIGNS = (
    ".SCB", ".quant_map", ".absmax", ".W_q", ".weight_scales", ".weight_global_scale", ".qweight",
    ".weight_packed", ".weight_scale_inv", ".qscale_weight", ".weight_scale", "_blocks",
)  # fmt: skip


def fp8(config: Config) -> LayoutsOf:
    """Of Qwen and DeepSeek in blocks, or with a scale for the matrix."""
    block = config.get("weight_block_size")
    sides = None if block is None else (block[0], block[1])
    layout = Layout("eight-bit", "e4m3", block=sides, activations=block is None)
    return lambda module: [layout]


def fbgemm_fp8(config: Config) -> LayoutsOf:
    """A scale for each row."""
    return lambda module: [Layout("eight-bit", "e4m3", activations=True)]


def mxfp4(config: Config) -> LayoutsOf:
    """Blocks of 32 with an exponent each."""
    return lambda module: [Layout("mxfp4", "e2m1")]


def gptq(config: Config) -> LayoutsOf:
    """GPTQ of 4 or 8 bits; `dynamic` overrides fields where a pattern matches a module's name."""
    everywhere = _gptq(config)
    own = {
        pattern.removeprefix("+:"): _gptq(config | fields)
        for pattern, fields in (config.get("dynamic") or {}).items()
        if not pattern.startswith("-:")  # of exclusions the tensors tell
    }
    return lambda module: [
        *(layout for pattern, layout in own.items() if re.match(pattern, module)),
        everywhere,
    ]


def _gptq(config: Config) -> Layout:
    bits, size = config.get("bits"), _group(config.get("group_size", -1))
    if bits not in (4, 8):
        raise _unread("gptq", "bits", bits)
    version = config.get("checkpoint_format") or config.get("format") or "gptq"
    version = "marlin" if config.get("is_marlin_format") else str(version).lower()
    if version not in ("gptq", "gptq_v2"):
        raise _unread("gptq", "checkpoint_format", version)
    ordered = bool(config.get("desc_act"))
    return Layout(
        "gptq",
        f"int{bits}",
        size,
        required=("g_idx",) if ordered and size is not None else (),
        symmetric=bool(config.get("sym")),
        ordered=ordered,
        offset=int(version == "gptq"),
    )


def awq(config: Config) -> LayoutsOf:
    """AWQ of 4 bits in the layout `gemm`; `qzeros` are stored with `zero_point=False`, too."""
    bits = config.get("bits", config.get("w_bit", 4))
    if bits != 4:
        raise _unread("awq", "bits", bits)
    version = config.get("version") or config.get("format") or "gemm"
    if str(version).lower() != "gemm":
        raise _unread("awq", "version", version)
    if (backend := config.get("backend")) == "llm-awq":
        raise _unread("awq", "backend", backend)
    size = config.get("group_size", config.get("q_group_size", 128))
    layout = Layout("awq", "int4", _group(size))
    return lambda module: [layout]


def auto_round(config: Config) -> LayoutsOf:
    """AutoRound in the layout of GPTQ or AWQ; layers of other sizes in it do not fit."""
    backend = str(config.get("backend") or "auto_round:gptq")
    method = backend.removeprefix("auto_round:").partition(":")[0]
    if config.get("packing_format") is None and method not in ("gptq", "awq"):
        raise _unread("auto-round", "backend", backend)  # 0.3, whose zero points are others
    packing = str(config.get("packing_format") or method).removeprefix("auto_round:")
    if packing not in PACKINGS:
        raise _unread("auto-round", "packing_format", packing)
    for field, only in (("data_type", "int"), ("act_bits", 16)):
        if (config.get(field) or only) != only:
            raise _unread("auto-round", field, config[field])
    return gptq(config) if PACKINGS[packing] == "gptq" else awq(config)


def compressed_tensors(config: Config) -> LayoutsOf:
    """Groups of modules, each with a layout."""
    for field in ("sparsity_config", "transform_config"):
        given = config.get(field)
        if given and given.get("format") != "dense":
            raise _unread("compressed-tensors", field, given)
    groups = [
        (group["targets"], _compressed(group, group.get("format") or config.get("format")))
        for group in config.get("config_groups", {}).values()
        if group.get("weights") is not None  # of others activations or caches are quantized
    ]
    return lambda module: by_target(groups, module)


def by_target(groups: list[tuple[list[str], Layout]], module: str) -> list[Layout]:
    """The layouts of the groups that describe a module, in the order of `compressed-tensors`: a
    target is a module's name, a pattern `re:...`, or the class `Linear`; the first kind counts that
    matches, among patterns the first in alphabetical order, among equal targets the last group.
    """
    found: list[tuple[int, str, int, Layout]] = []
    for number, (targets, layout) in enumerate(groups):
        for target in targets:
            if target == module:
                found.append((0, "", -number, layout))
            elif target.startswith("re:") and re.match(target.removeprefix("re:"), module):
                found.append((1, target, -number, layout))
            elif target == "Linear":
                found.append((2, "", -number, layout))
    return [layout for *_, layout in sorted(found, key=lambda one: one[:3])]


def _compressed(group: Config, form: Any) -> Layout:
    weights, inputs = group["weights"], group.get("input_activations") or {}
    kind, bits = weights.get("type", "int"), weights.get("num_bits")
    if form not in ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized"):
        raise _unread("compressed-tensors", "format", form)
    if (strategy := weights.get("strategy")) not in (None, "tensor", "channel", "group", "block"):
        raise _unread("compressed-tensors", "strategy", strategy)
    size = weights.get("group_size")
    columns = None if size is None else _group(size)
    needed = () if weights.get("symmetric", True) else ("weight_zero_point",)
    order = str(weights.get("actorder") or "static").lower()
    if order not in ORDERS:
        raise _unread("compressed-tensors", "actorder", order)
    if ordered := ORDERS[order] and columns is not None:
        needed += ("weight_g_idx",)
    if form == "pack-quantized" and kind == "int" and bits in (4, 8):
        return Layout("packed", f"int{bits}", columns, required=needed)
    if form == "pack-quantized" or kind not in ("int", "float") or bits != 8:
        raise _unread("compressed-tensors", "weights", f"{bits}-bit {kind}")
    if ordered:
        raise _unread("compressed-tensors", "actorder", order)
    block = weights.get("block_structure") if strategy == "block" else None
    if isinstance(block, str):  # "128x128"
        block = [int(side) for side in block.split("x")]
    both = inputs.get("type", "int") == kind and inputs.get("num_bits") == 8
    sides = None if block is None else (block[0], block[1])
    kind = "int8" if kind == "int" else "e4m3"
    return Layout("eight-bit", kind, columns, sides, needed, activations=both)


METHODS: dict[str, Callable[[Config], LayoutsOf]] = {
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
    "auto-round": auto_round,
    "mxfp4": mxfp4,
}


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint is quantized: the method, and the layouts that a module may have."""

    method: str
    layouts_of: LayoutsOf

    def refuse_other(self, quantization: Quantization | None, folder: Path) -> None:
        """Raise `OptionError` for a quantization of what is already quantized."""
        if quantization is not None and not isinstance(quantization, NoQuantization):
            raise OptionError(
                f"`{folder}` is already quantized by {self.method}: leave out `quantization`, or "
                "give `none` (for a draft, as `draft_quantization`)."
            )

    def described(self, files: TensorFiles, raw: Config) -> TensorFiles:
        """The files with each quantized matrix as one tensor, under its own name and shape."""
        rest = {name: t for name, t in files.stored.items() if not UNUSED.search(name)}
        dtype, found = stored_dtype(raw), dict[str, Stored]()
        for name, codes in [*rest.items()]:
            end = next((end for end in ROLES if name.endswith(end)), "")
            start = name.removesuffix(end[1:])
            roles = {role: rest.get(start + role) for role in ROLES.get(end, ())}
            parts = {end[1:]: codes} | {r: part for r, part in roles.items() if part is not None}
            scaled = {"weight_scale", "weight_scale_inv"} & parts.keys()
            if not end or (end == ".weight" and not scaled):
                continue
            module = name.removesuffix(end)
            layout = self._layout(f"`{files.folder}`", module, parts)
            shape = layout.shape(parts)
            kinds = [part.kind for part in parts.values() if part.kind in ("F16", "BF16")]
            found[module if end == "_blocks" else f"{module}.weight"] = StoredQuantized(
                codes.path,
                name,
                KIND_OF[dtype] if dtype else (kinds or ["BF16"])[0],
                shape,
                parts=parts,
                weight=partial(layout.weight, shape=shape),
                words=layout.in_words(shape, parts),
            )
            for role in parts:
                del rest[start + role]
        return replace(files, stored=rest | found)

    def _layout(self, folder: str, module: str, parts: dict[str, Stored]) -> Layout:
        """The first layout of a module that its tensors have."""
        misfits: list[str] = []
        for layout in self.layouts_of(module):
            if not (reason := layout.misfit(parts)):
                return layout
            misfits.append(reason)
        raise CheckpointError(
            f"{folder}: its quantization_config ({self.method}) does not describe `{module}`: "
            f"{misfits[0] if misfits else 'no group has it as a target'}; correct the config, or "
            "download the checkpoint again."
        )


def declared(folder: Path, raw: Config) -> Config | None:
    """The quantization_config of config.json, or of a separate file of GPTQ or AWQ."""
    for config in (raw, raw.get("text_config") or {}):
        for field in ("quantization_config", "compression_config"):
            if found := config.get(field):
                return found
    for name, method in SEPARATE.items():
        if (folder / name).is_file():
            return {"quant_method": method} | read_json(folder / name)
    return None


def scheme_of(folder: Path, raw: Config, files: TensorFiles) -> Scheme | None:
    """The quantization of a checkpoint, or None. A `CheckpointError` names one that is not read."""
    config = declared(folder, raw)
    if config is None:
        _refuse_undeclared(folder, raw, files)
        return None
    method = str(config.get("quant_method")).lower().removeprefix("intel/")
    if method not in METHODS:
        raise CheckpointError(
            f"`{folder}` is quantized by `{config.get('quant_method')}`, which `bass` does not "
            f"read: use the original checkpoint, or one quantized by {', '.join(sorted(METHODS))}."
        )
    try:
        return Scheme(method, METHODS[method](config))
    except CheckpointError as error:
        raise CheckpointError(f"`{folder}`: {error}") from error


def summary(scheme: Scheme | None, files: TensorFiles) -> str:
    """The method, and how many matrices have which bits and groups."""
    if scheme is None:
        return ""
    counts = Counter(t.words for t in files.stored.values() if isinstance(t, StoredQuantized))
    forms = (f"{n} {'matrix' if n == 1 else 'matrices'} in {w}" for w, n in counts.items())
    return f"{scheme.method}: {'; '.join(forms) or 'no matrix'}"


def _refuse_undeclared(folder: Path, raw: Config, files: TensorFiles) -> None:
    """Raise `CheckpointError` for a checkpoint that is quantized without a quantization_config."""
    names = sorted(name for name in files.stored if name.endswith(SIGNS))
    sign = f"{counted(len(names), 'tensor')} such as `{some(names[:1])}`" if names else ""
    if raw.get("quantization"):
        sign = "by MLX: `quantization` in its config.json"
    elif (folder / "hf_quant_config.json").is_file():
        sign = "by ModelOpt: `hf_quant_config.json`"
    if sign:
        raise CheckpointError(
            f"`{folder}` is quantized ({sign}) and has no quantization_config, so `bass` does not "
            "read it: use the original checkpoint, or one whose config.json has it."
        )


def _group(size: int) -> int | None:
    """Inputs of a group; None: all."""
    return None if size == -1 else size


def _unread(method: str, field: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"It is quantized by {method} with `{field}={value!r:.100}`, which `bass` does not read: "
        "use the original checkpoint, or another quantization of it."
    )
