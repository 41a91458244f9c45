"""Random weights for `load_format="dummy"`: the shapes of a config.json without its weights."""

import os

import torch
from torch import nn

from bass.models.decoder import CausalDecoder
from bass.ops.norms import HeadNorm, OffsetRMSNorm, offset_scaled


class RandomWeights:
    """Fills parameters with random values, the same for every call, that keep the scale of the
    residual stream.

    Norms scale by 1, biases are 0, and a product of normalized rows has variance 1.
    """

    def __init__(self, decoder: CausalDecoder, device: torch.device) -> None:
        self.decoder = decoder
        self.generator = torch.Generator(device).manual_seed(0)

    def __call__(self, path: str, own: str) -> None:
        """Fill the parameter `own` of the module at `path`."""
        module = self.decoder.get_submodule(path)
        parameter = module.get_parameter(own)
        if parameter.ndim > 1:
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=self.generator)
        else:
            parameter.fill_(0 if own.endswith("bias") or stores_distance(module) else 1)


def stores_distance(module: nn.Module) -> bool:
    """Whether a norm stores its weights as their distance from 1."""
    return isinstance(module, OffsetRMSNorm) or (
        isinstance(module, HeadNorm) and module.scale is offset_scaled
    )


def check_memory(needed: int) -> None:
    """Raise `MemoryError` for more bytes than the machine has.

    Without a file of that size, an overcommitting system would end the process instead.
    """
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > has:
        raise MemoryError(f"the machine has {has / 1e9:.1f} GB")
