"""Quantizations of the weight of a linear layer, one class for each method."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from bass.errors import OptionError
from bass.interfaces import Quantization
from bass.ops.linear import QuantizedLinear
from bass.ops.quantize import E4M3


@dataclass(frozen=True)
class _EightBits(Quantization):
    """weights, activations: the types that they are quantized to, None: not. capability: the least
    one of a GPU that multiplies in it.
    """

    weights: ClassVar[torch.dtype]
    activations: ClassVar[torch.dtype | None] = None
    capability: ClassVar[tuple[int, int]] = (0, 0)

    def check(self, device: torch.device) -> None:
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < self.capability:
            least, found = self.capability, torch.cuda.get_device_capability(device)
            raise OptionError(
                f"The quantization `{type(self).__name__.lower()}` needs compute capability "
                f"{least[0]}.{least[1]}, and `{device}` has {found[0]}.{found[1]}: give "
                "`int8-weight`, or leave it out."
            )

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, self.weights, self.activations)


@final
class Int8(_EightBits):
    """Weights and activations in int8, by vector-wise absmax for all columns, outliers included."""

    paper: ClassVar[str] = "Dettmers et al., 2022"
    weights = activations = torch.int8
    capability = (7, 5)


@final
class Fp8(_EightBits):
    """Weights and activations in e4m3, scaled as in `int8`; a CPU computes the same in float32."""

    paper: ClassVar[str] = "Micikevicius et al., 2022"
    weights = activations = E4M3
    capability = (8, 9)


@final
class Int8Weight(_EightBits):
    """Only weights in int8: half the bytes of bfloat16, with products in the model's type."""

    paper: ClassVar[str] = "Krishnamoorthi, 2018"
    weights = torch.int8
