"""Linear layers and experts that keep the quantized weights of a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.checkpoints.quantized.weight import QuantizedStack, QuantizedWeight, stacked
from bass.checkpoints.shards import FLOATS, Stored, StoredQuantized, TensorFiles, TensorReader
from bass.models.sources import WeightSource
from bass.ops.experts import Experts
from bass.ops.quantize import E4M3

E4M3_FROM = (8, 9)  # the compute capability of GPUs with products of e4m3
WHOLE = 64  # inputs of two groups of MXFP4: each half of the inputs has whole groups


def keep_quantized(
    decoder: nn.Module, path: str, sources: Mapping[str, WeightSource], reader: TensorReader
) -> bool:
    """Replace a linear layer by one with the checkpoint's quantized matrix, if it has one."""
    bias = decoder.get_submodule(path)._parameters.get("bias")
    if bias is not None:
        source, bias = sources[f"{path}.bias"], torch.empty_like(bias, device=reader.device)
        source.fill(bias, [reader[tensor] for tensor in source.tensors])
    layer = quantized_layer(sources[f"{path}.weight"], bias, reader)
    if layer is None:
        return False
    owner, _, own = path.rpartition(".")
    setattr(decoder.get_submodule(owner), own, layer)
    return True


def keep_in_four_bits(
    module: nn.Module, own: str, source: WeightSource, reader: TensorReader
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
