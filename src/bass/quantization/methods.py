"""Quantizations of the weight of a linear layer, one class for each method."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.errors import OptionError
from bass.interfaces import Quantization
from bass.ops.linear import Linear, QuantizedLinear
from bass.ops.quantize import E4M3


@final
@dataclass(frozen=True)
class NoQuantization(Quantization):
    """Weights in the model's own type."""

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> Linear:
        layer = Linear(weight.shape[1], weight.shape[0], torch.device("meta"), weight.dtype)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        return layer


@final
@dataclass(frozen=True)
class Int8(Quantization):
    """Weights and activations in int8: vector-wise absmax for all columns (LLM.int8() keeps
    outliers in float16).
    """

    paper: ClassVar[str] = "Dettmers et al., 2022"

    def check(self, device: torch.device) -> None:
        _check_capability(device, (7, 5), "int8", "multiplies in int8")

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, torch.int8, torch.int8)


@final
@dataclass(frozen=True)
class Fp8(Quantization):
    """Weights and activations in e4m3, scaled as in `int8`; a CPU computes the same in float32."""

    paper: ClassVar[str] = "Micikevicius et al., 2022"

    def check(self, device: torch.device) -> None:
        _check_capability(device, (8, 9), "fp8", "multiplies in e4m3")

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, E4M3, E4M3)


@final
@dataclass(frozen=True)
class Int8Weight(Quantization):
    """Only weights in int8: half the bytes of bfloat16, with products in the model's type."""

    paper: ClassVar[str] = "Krishnamoorthi, 2018"

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, torch.int8, None)


def _check_capability(device: torch.device, least: tuple[int, int], name: str, does: str) -> None:
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < least:
        raise OptionError(
            f"The quantization `{name}` {does}, which needs compute capability "
            f"{least[0]}.{least[1]}, and `{device}` has "
            f"{found[0]}.{found[1]}: give `int8-weight`, or leave it out."
        )
