"""Checkpoints of random numbers with the shapes of a config.json, bfloat16 or quantized.

They are written as fast as the folder takes them: a few random blocks fill all tensors, so nothing
is drawn or held for each. Matrices keep the scale of the residual stream, as with
`load_format="dummy"`. The quantized formats are those of public checkpoints, with groups of 128, or
of 32 in MXFP4, which quantizes experts and nothing else.
"""

import functools
import itertools
import json
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import command_line as cli
import torch
from torch import Tensor
from write_shapes import Config

from bass.checkpoints.folder import INDEX, SINGLE
from bass.checkpoints.shards import KINDS
from bass.checkpoints.weights import dummy_index
from bass.models.decoder import CausalDecoder
from bass.models.sources import stores_distance
from bass.ops.experts import Experts
from bass.quantization.apply import quantizable

GROUP, BLOCK, WRITERS = 128, 1 << 22, 8  # BLOCK: bytes
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # codes without their sign
E8M0_BIAS, MXFP4_GROUP = 127, 32
E4M3 = torch.float8_e4m3fn
SHM = Path("/dev/shm")


class Part(NamedTuple):
    """A stored tensor: its type in the file, its shape, and bytes that are repeated to fill it."""

    kind: str
    shape: tuple[int, ...]
    block: memoryview

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * KINDS[self.kind].itemsize


Stored = Callable[..., dict[str, Part]]  # the shape of a tensor -> its parts by role


class Format(NamedTuple):
    """What config.json says, and how a matrix, or all experts' of a layer, are stored."""

    config: Config
    stored: Stored
    of_experts: bool = False


def raw(values: Tensor) -> memoryview:
    """Its bytes."""
    return memoryview(values.contiguous().view(torch.uint8).numpy())


@functools.cache
def constant(value: float, dtype: torch.dtype) -> memoryview:
    """A block of one number."""
    return raw(torch.full((BLOCK // 8,), value, dtype=dtype))


@functools.cache
def normal(std: float) -> memoryview:
    """A block of normal numbers in bfloat16."""
    drawn = torch.randn(BLOCK // 2, generator=torch.Generator().manual_seed(0))
    return raw((drawn * std).bfloat16())


@functools.cache
def random_codes(dtype: torch.dtype) -> tuple[memoryview, float]:
    """A block of random codes, all of them finite, and the root of their mean square."""
    drawn = torch.randint(0, 256, (BLOCK,), generator=torch.Generator().manual_seed(0))
    codes = drawn.to(torch.uint8)
    if dtype == torch.int32:  # eight codes of 4 bits around 8
        rms = ((torch.cat((codes & 15, codes >> 4)).float() - 8) ** 2).mean().sqrt()
        return raw(codes), float(rms)
    if dtype == E4M3:
        codes[codes & 127 == 127] = 0  # not a number
    return raw(codes), float((codes.view(dtype).float() ** 2).mean().sqrt())


def eight_bits(kind: str, roles: tuple[str, str], block: bool) -> Stored:
    """Codes of 8 bits with a scale for each row, or for blocks."""

    def stored(out: int, size: int) -> dict[str, Part]:
        codes, rms = random_codes(KINDS[kind])
        shape = (-(-out // GROUP), -(-size // GROUP)) if block else (out, 1)
        scale = Part("BF16", shape, constant(size**-0.5 / rms, torch.bfloat16))
        return {roles[0]: Part(kind, (out, size), codes), roles[1]: scale}

    return stored


def packed_rows(out: int, size: int) -> dict[str, Part]:
    """Of compressed-tensors, without zero points."""
    codes, rms = random_codes(torch.int32)
    scale = constant(size**-0.5 / rms, torch.bfloat16)
    return {
        "weight_packed": Part("I32", (out, size // 8), codes),
        "weight_scale": Part("BF16", (out, -(-size // GROUP)), scale),
        "weight_shape": Part("I64", (2,), raw(torch.tensor([out, size]))),
    }


def gptq(out: int, size: int) -> dict[str, Part]:
    """Without `desc_act`; all zero points are 8, stored as 7."""
    return {
        **_packed_columns((size // 8, out), (-(-size // GROUP), out), 0x77777777),
        "g_idx": Part("I32", (size,), raw((torch.arange(size) // GROUP).int())),
    }


def awq(out: int, size: int) -> dict[str, Part]:
    """In the layout `gemm`, with zero points."""
    return _packed_columns((size, out // 8), (-(-size // GROUP), out), 0x88888888 - (1 << 32))


def mxfp4(count: int, size: int, out: int) -> dict[str, Part]:
    """The experts of a layer; two codes in a byte."""
    codes = random_codes(torch.uint8)[0]
    rms = math.sqrt(sum(value**2 for value in E2M1) / len(E2M1))
    exponent = round(math.log2(size**-0.5 / rms))
    scale = constant(E8M0_BIAS + exponent, torch.uint8)
    shape = (count, out, size // MXFP4_GROUP)
    return {
        "blocks": Part("U8", (*shape, MXFP4_GROUP // 2), codes),
        "scales": Part("U8", shape, scale),
    }


def _packed_columns(words: tuple[int, int], groups: tuple[int, int], zero: int) -> dict[str, Part]:
    codes, rms = random_codes(torch.int32)
    size = groups[0] * GROUP
    return {
        "qweight": Part("I32", words, codes),
        "qzeros": Part("I32", (groups[0], groups[1] // 8), constant(zero, torch.int32)),
        "scales": Part("F16", groups, constant(size**-0.5 / rms, torch.float16)),
    }


def compressed(layout: str, weights: Config, inputs: Config | None = None) -> Config:
    """The quantization_config of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


TOKEN = {"num_bits": 8, "strategy": "token", "dynamic": True}
ROWS = {"num_bits": 8, "strategy": "channel"}
OF_4 = {"bits": 4, "group_size": GROUP}
NOT_IN_MXFP4 = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                "lm_head"]  # fmt: skip
FORMATS: dict[str, Format] = {
    "fp8-blocks": Format(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [GROUP] * 2},
        eight_bits("F8_E4M3", ("weight", "weight_scale_inv"), True),
    ),
    "fp8-rows": Format(
        compressed("float-quantized", ROWS | {"type": "float"}, TOKEN | {"type": "float"}),
        eight_bits("F8_E4M3", ("weight", "weight_scale"), False),
    ),
    "int8-rows": Format(
        compressed("int-quantized", ROWS | {"type": "int"}, TOKEN | {"type": "int"}),
        eight_bits("I8", ("weight", "weight_scale"), False),
    ),
    "int4": Format(
        compressed(
            "pack-quantized",
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP},
        ),
        packed_rows,
    ),
    "gptq": Format({"quant_method": "gptq", **OF_4, "desc_act": False, "sym": True}, gptq),
    "awq": Format({"quant_method": "awq", **OF_4, "version": "gemm"}, awq),
    "mxfp4": Format({"quant_method": "mxfp4", "modules_to_not_convert": NOT_IN_MXFP4}, mxfp4, True),
}


def quantized_in(decoder: CausalDecoder, form: Format | None) -> set[str]:
    """The parameters that the format quantizes."""
    if form is None:
        return set()
    if not form.of_experts:
        return {f"{path}.weight" for path in quantizable(decoder)}
    layers = (path for path, module in decoder.named_modules() if isinstance(module, Experts))
    return {f"{path}.{own}" for path in layers for own in ("gate_up", "down")}


def parts_of(decoder: CausalDecoder, form: Format | None) -> Iterator[tuple[str, Part]]:
    """The tensors of a checkpoint by name, in the order of the layers."""
    quantized = quantized_in(decoder, form)
    sources = type(decoder).sources(decoder.config)  # pyright: ignore[reportArgumentType]
    for ours, parameter in decoder.named_parameters():
        path, _, own = ours.rpartition(".")
        source = sources[ours]
        for name, shape in zip(source.tensors, source.shapes(parameter.shape), strict=True):
            if form is not None and ours in quantized:
                prefix = f"{name}_" if form.of_experts else name.removesuffix("weight")
                for role, part in form.stored(*shape).items():
                    yield f"{prefix}{role}", part
            elif parameter.ndim > 1:
                yield name, Part("BF16", shape, normal(parameter.shape[-1] ** -0.5))
            else:
                zero = own.endswith("bias") or stores_distance(decoder.get_submodule(path))
                yield name, Part("BF16", shape, constant(float(not zero), torch.bfloat16))


def write(folder: Path, config: Config, method: str = "bf16", shards: int = 1) -> int:
    """Write the checkpoint and return the bytes of its tensors. method: of `FORMATS`, or "bf16"."""
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / "config.json"
    about.write_text(json.dumps(config), encoding="utf-8")
    form = None if method == "bf16" else FORMATS[method]
    parts = dict(parts_of(dummy_index(folder).decoder, form))
    if form is not None:
        stored = config | {"quantization_config": form.config}
        about.write_text(json.dumps(stored), encoding="utf-8")
    total = sum(part.size for part in parts.values())
    ends = list(itertools.accumulate(part.size for part in parts.values()))
    places = {n: shards * (end - 1) // total for n, end in zip(parts, ends, strict=True)}
    files = {i: file_name(i, shards) for i in {*places.values()}}
    ended = threading.Event()  # an interruption ends the writers too
    with ThreadPoolExecutor(WRITERS) as pool:
        of_files = [
            pool.submit(
                _write_file, folder / file, {n: parts[n] for n in parts if places[n] == i}, ended
            )
            for i, file in files.items()
        ]
        try:
            for written in of_files:
                written.result()
        finally:
            ended.set()
    if shards > 1:
        weights = {"weight_map": {name: files[i] for name, i in places.items()}}
        (folder / INDEX).write_text(json.dumps(weights), encoding="utf-8")
    return total


def file_name(number: int, shards: int) -> str:
    """The name of a file of a checkpoint."""
    return SINGLE if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"


def _write_file(path: Path, parts: Mapping[str, Part], ended: threading.Event) -> None:
    """Write a safetensors file, unless it is ended."""
    header: dict[str, Any] = {}
    end = 0
    for name, part in parts.items():
        at = [end, end := end + part.size]
        header[name] = {"dtype": part.kind, "shape": part.shape, "data_offsets": at}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts.values():
            for begin in range(0, part.size, len(part.block)):
                if ended.is_set():
                    return
                file.write(part.block[: part.size - begin])


def shrunk(config: Config, hidden: int | None, layers: int | None) -> Config:
    """A Llama-like config with a smaller hidden size and fewer layers, for trials without a GPU."""
    found = dict(config)
    if layers is not None:
        found["num_hidden_layers"] = layers
    if hidden is not None:
        heads = hidden // 64
        found |= {"hidden_size": hidden, "intermediate_size": 2 * hidden, "vocab_size": 1024}
        found |= {"num_attention_heads": heads, "head_dim": 64}
        found |= {"num_key_value_heads": max(1, heads // 2)}
    return found


def bytes_of(config: Config) -> int:
    """The bytes of its checkpoint in bfloat16."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "config.json").write_text(json.dumps(config), encoding="utf-8")
        parameters = dummy_index(Path(name)).decoder.parameters()
    return torch.bfloat16.itemsize * sum(parameter.numel() for parameter in parameters)


@contextmanager
def place_for(needed: int, folder: Path | None) -> Iterator[Path]:
    """A new folder with room for these bytes: in `folder`, else in memory or on the disk."""
    home = folder
    if home is None and SHM.is_dir() and shutil.disk_usage(SHM).free > needed + (8 << 30):
        home = SHM
    cli.check_room(needed, home)
    with tempfile.TemporaryDirectory(dir=home) as name:
        yield Path(name)
