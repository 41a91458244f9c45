"""Replaces a decoder's linear layers by quantized ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from bass.errors import OptionError, StrategyError
from bass.interfaces import Quantization
from bass.models.decoder import CausalDecoder
from bass.ops.experts import Experts
from bass.ops.linear import Linear


def quantizable(decoder: CausalDecoder) -> list[str]:
    """The names of the linear layers in the decoder's blocks, but for routers of mixtures, which
    choose the experts. Raises `OptionError` without any.
    """
    names = [
        f"blocks.{name}"
        for name, layer in decoder.blocks.named_modules()
        if type(layer) is Linear and not name.endswith(".router")
    ]
    if not names:
        raise OptionError(
            f"The blocks of `{type(decoder).__name__}` have no `bass.ops.linear.Linear`: give "
            "no quantization."
        )
    return names


@torch.no_grad()
def quantize_layer(decoder: CausalDecoder, name: str, quantization: Quantization) -> None:
    """Replace one of the `quantizable` layers by its quantized layer, and free its weight."""
    owner, _, own = name.rpartition(".")
    layer: Any = decoder.get_submodule(name)
    setattr(decoder.get_submodule(owner), own, _made(quantization, layer.weight, layer.bias))


@torch.no_grad()
def quantize_head(decoder: CausalDecoder, quantization: Quantization) -> CausalDecoder:
    """Quantize the head of a decoder, in place; an embedding that is tied to it does not change."""
    if decoder.head is None:
        weight = decoder.embed.clone()  # a copy, which the quantization may overwrite
        decoder.head, decoder.head_bias = _made(quantization, weight, decoder.head_bias), None
    elif isinstance(decoder.head, Linear):
        decoder.head = _made(quantization, decoder.head.weight, decoder.head.bias)
    return decoder


def _made(
    quantization: Quantization, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> nn.Module:
    made = quantization(weight.detach(), None if bias is None else bias.detach())
    if not isinstance(made, nn.Module):
        raise StrategyError(
            f"`{type(quantization).__name__}` returned {made!r} for a linear layer: return a "
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
    """Within it, new linear layers and experts of this thread are on the meta device: no memory."""
    thread = threading.get_ident()

    def emptied(module: nn.Module, name: str, parameter: Tensor) -> Tensor | None:
        known = type(module) in (Linear, Experts) and threading.get_ident() == thread
        return nn.Parameter(parameter.to("meta"), requires_grad=False) if known else None

    # torch's annotation lacks hooks that return another parameter
    register: Any = register_module_parameter_registration_hook
    hook = register(emptied)
    try:
        yield
    finally:
        hook.remove()
