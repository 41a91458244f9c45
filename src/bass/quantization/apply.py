"""Linear layers in fewer bytes: weights in 8 bits with a scale for each output channel, and
activations with one for each token.

    scale[r] = max |x[r]| / L ;  q[r] = round(x[r] / scale[r])
    y[m, n]  = (Σ_k q_x[m, k] q_w[n, k]) · scale_x[m] · scale_w[n] + b[n]

with L the largest number of the type, 127 (int8) or 448 (e4m3).

A token's scale is its own, found as it is read, so that its result hangs neither on its batch mates
nor on calibration. The matrices of the blocks are quantized. Embedding, head (often the embedding
again), norms and biases stay as they are; but a draft's head, whose errors cost acceptance alone,
is quantized too (`quantize_head`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from bass.errors import BassError, OptionError, StrategyError, is_out_of_memory
from bass.interfaces import Quantization
from bass.models.decoder import CausalDecoder
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
    """Weights and activations in int8: vector-wise absmax, all columns alike (LLM.int8() keeps
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
    """Weights and activations in e4m3, scaled as for `int8`; a CPU does the same arithmetic in
    float32.
    """

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
    """Weights alone in int8: half the bytes of bfloat16 are read, products stay in the model's
    type.
    """

    paper: ClassVar[str] = "Krishnamoorthi, 2018"

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, torch.int8, None)


QUANTIZATIONS: dict[str, type[Quantization]] = {
    "none": NoQuantization,
    "int8": Int8,
    "fp8": Fp8,
    "int8-weight": Int8Weight,
}


def _check_capability(device: torch.device, least: tuple[int, int], name: str, does: str) -> None:
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < least:
        raise OptionError(
            f"The quantization `{name}` {does}, which needs compute capability "
            f"{least[0]}.{least[1]}, and `{device}` has "
            f"{found[0]}.{found[1]}: give `int8-weight`, or leave it out."
        )


def quantizable(decoder: CausalDecoder) -> list[str]:
    """The names of the linear layers in the decoder's blocks."""
    names = [
        f"blocks.{name}" for name, layer in decoder.blocks.named_modules() if type(layer) is Linear
    ]
    if not names:
        raise OptionError(
            f"The blocks of `{type(decoder).__name__}` have no `bass.ops.linear.Linear`: give "
            "no quantization."
        )
    return names


@torch.no_grad()
def quantize_layer(decoder: CausalDecoder, name: str, quantization: Quantization) -> None:
    """Put the quantized layer in the place of one of `quantizable`, whose weight is freed."""
    owner, _, own = name.rpartition(".")
    layer: Any = decoder.get_submodule(name)
    setattr(decoder.get_submodule(owner), own, _made(quantization, layer.weight, layer.bias))


@torch.no_grad()
def quantize_head(decoder: CausalDecoder, quantization: Quantization) -> CausalDecoder:
    """Quantize the head of a decoder, in place; the embedding, which it may have been tied to,
    stays as it is.
    """
    if isinstance(quantization, NoQuantization):
        return decoder
    if decoder.head is None:
        weight = decoder.embed.clone()  # which the quantization may overwrite
        decoder.head, decoder.head_bias = _made(quantization, weight, decoder.head_bias), None
    elif isinstance(decoder.head, Linear):
        decoder.head = _made(quantization, decoder.head.weight, decoder.head.bias)
    return decoder


def _made(
    quantization: Quantization, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> nn.Module:
    try:
        made = quantization(weight.detach(), None if bias is None else bias.detach())
    except Exception as error:  # of a user's class
        if isinstance(error, BassError) or is_out_of_memory(error):
            raise
        shape = " x ".join(map(str, weight.shape))
        raise StrategyError(
            f"`{type(quantization).__name__}` failed on a matrix of {shape}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise StrategyError(
            f"`{type(quantization).__name__}` made {made!r} of a linear layer: it must return a "
            "`torch.nn.Module`."
        )
    return made.requires_grad_(False).eval()


def quantize(decoder: CausalDecoder, quantization: Quantization) -> CausalDecoder:
    """Quantize the linear layers of a decoder's blocks, in place."""
    for name in quantizable(decoder):
        quantize_layer(decoder, name, quantization)
    return decoder


@contextmanager
def unfilled() -> Iterator[None]:
    """Linear layers made meanwhile, by this thread, take no memory: their parameters are on the
    meta device.
    """
    thread = threading.get_ident()

    def emptied(module: nn.Module, name: str, parameter: Tensor) -> Tensor | None:
        ours = type(module) is Linear and threading.get_ident() == thread
        return nn.Parameter(parameter.to("meta"), requires_grad=False) if ours else None

    # whose annotation forgets that a hook may return another parameter
    register: Any = register_module_parameter_registration_hook
    hook = register(emptied)
    try:
        yield
    finally:
        hook.remove()
