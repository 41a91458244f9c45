"""Qwen 2 and 2.5 (Yang et al., 2024): Llama with biases on queries, keys and values, and windows in
the upper layers.

Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, WindowedConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.sources import WeightSource, gated_sources
from bass.ops.norms import RMSNorm


@dataclass(frozen=True)
class Qwen2Config(WindowedConfig):
    """A config.json of `model_type: qwen2`."""

    model_type: ClassVar[str] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"


@final
class Qwen2(RotaryDecoder):
    """A decoder of the Qwen2 family."""

    config_type: ClassVar[type[FamilyConfig]] = Qwen2Config

    def __init__(
        self,
        config: Qwen2Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype, qkv_bias=True) for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: Qwen2Config) -> dict[str, WeightSource]:
        return gated_sources(config, qkv_bias=True)
