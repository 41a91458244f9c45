"""Linear layers and experts that keep the quantized weights of a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.checkpoints.quantized.damaged import NAN, NO_NUMBERS, SIGN
from bass.checkpoints.quantized.weight import QuantizedStack, QuantizedWeight, stacked
from bass.checkpoints.shards import FLOATS, Stored, StoredQuantized, TensorFiles, TensorReader
from bass.errors import CheckpointError
from bass.models.sources import WeightSource
from bass.ops.experts import Experts
from bass.ops.group_quantized import GroupQuantizedLinear
from bass.ops.linear import QuantizedLinear
from bass.ops.quantize import E4M3

E4M3_FROM = (8, 9)  # the compute capability of GPUs with products of e4m3
WHOLE = 64  # inputs of two groups of MXFP4: each half of the inputs has whole groups


def keep_quantized(
    decoder: nn.Module,
    path: str,
    sources: Mapping[str, WeightSource],
    reader: TensorReader,
    advance: Callable[[int], None],
) -> bool:
    """Replace a linear layer by one with the checkpoint's quantized matrix, if it has one."""
    old, bias, read = decoder.get_submodule(path), None, [f"{path}.weight"]
    if (given := old._parameters.get("bias")) is not None:
        read.append(f"{path}.bias")
        bias = torch.empty_like(given, device=reader.device)
        sources[read[1]].fill(bias, [reader[tensor] for tensor in sources[read[1]].tensors])
    layer = quantized_layer(sources[read[0]], bias, reader)
    if layer is None:
        return False
    for tensor in (tensor for name in read for tensor in sources[name].tensors):
        reader.release(tensor)
        advance(reader.files.stored[tensor].stop - reader.files.stored[tensor].start)
    owner, _, own = path.rpartition(".")
    setattr(decoder.get_submodule(owner), own, layer)
    return True


def keep_in_four_bits(
    module: nn.Module,
    own: str,
    source: WeightSource,
    reader: TensorReader,
    advance: Callable[[int], None],
) -> bool:
    """Replace a matrix of experts by its codes and scales, if the checkpoint has it in MXFP4."""
    name, *others = source.tensors
    stored = reader.files.stored[name]
    if others or not (isinstance(module, Experts) and isinstance(stored, StoredQuantized)):
        return False
    if getattr(module, own).shape[1] % WHOLE:
        return False
    stack = reader.quantized(stored)
    if not isinstance(stack, QuantizedStack):
        return False
    codes, scales = stack.in_four_bits(source.rows)
    setattr(module, own, nn.Parameter(codes, requires_grad=False))
    setattr(module, f"{own}_scale", nn.Parameter(scales, requires_grad=False))
    reader.release(name)
    advance(stored.stop - stored.start)
    return True


def quantized_layer(
    source: WeightSource, bias: Float[Tensor, " out"] | None, reader: TensorReader
) -> nn.Module | None:
    """The layer of a matrix whose parts are all quantized in one way; None: dequantize it."""
    found = [reader.files.stored[tensor] for tensor in source.tensors]
    parts = [part for part in found if isinstance(part, StoredQuantized)]
    if len(parts) < len(found) or source.transposed:
        return None
    weights = [reader.quantized(part) for part in parts]
    if not all(isinstance(weight, QuantizedWeight) for weight in weights):
        return None
    whole = stacked(weights)
    if whole is None or not _computes(whole, reader.device):
        return None
    layer = whole.permuted(source.rows).layer(bias)
    return None if layer is None else layer.requires_grad_(False).eval()


def _computes(weight: QuantizedWeight, device: torch.device) -> bool:
    """Whether the device has the numbers of the codes."""
    e4m3 = weight.codes.dtype == E4M3 and device.type == "cuda"
    return not e4m3 or torch.cuda.get_device_capability(device) >= E4M3_FROM


def check_numbers(decoder: nn.Module, folder: Path) -> None:
    """Raise `CheckpointError` for quantized layers with codes of e4m3 that are no numbers.

    On a GPU after loading: a read for each matrix would wait for its copy.
    """
    codes = {
        path: module.weight.data.view(torch.uint8)
        for path, module in decoder.named_modules()
        if isinstance(module, QuantizedLinear | GroupQuantizedLinear)
        and module.weight.dtype == E4M3
    }
    found = [(raw.amax() == NAN | SIGN) | (raw.view(torch.int8).amax() == NAN)
             for raw in codes.values()]  # fmt: skip
    damaged = torch.stack(found).tolist() if found else []  # sync: once, after loading
    for path in (path for path, is_damaged in zip(codes, damaged, strict=True) if is_damaged):
        raise CheckpointError(f"`{folder}`, read as `{path}`: it has {NO_NUMBERS}")


def of_layers(
    sources: Mapping[str, WeightSource], stored: Mapping[str, Stored]
) -> dict[str, WeightSource]:
    """The sources, with GPT-2's matrices as GPTQ stores them: [out, in], as those of all layers."""
    return {
        name: replace(source, transposed=False)
        if any(
            isinstance(tensor := stored.get(part), StoredQuantized) and "qweight" in tensor.parts
            for part in source.tensors
        )
        else source
        for name, source in sources.items()
    }


def without_zero_biases(names: Sequence[str], files: TensorFiles) -> list[str]:
    """The names but for biases of zeros of quantized matrices, which old exports of GPTQ add."""
    reader = TensorReader(files, torch.device("cpu"))

    def is_zero_bias(name: str) -> bool:
        matrix = files.stored.get(f"{name.removesuffix('.bias')}.weight")
        added = name.endswith(".bias") and isinstance(matrix, StoredQuantized)
        return added and files.stored[name].kind in FLOATS and not bool(reader[name].any())

    return [name for name in names if not is_zero_bias(name)]
