"""The Llama family: RMSNorm, rotary positions, grouped-query attention, gated MLP (Touvron et al.,
2023).

Llama 1 to 3, Code Llama, TinyLlama, SmolLM, DeepSeek-Coder.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.sources import WeightSource, gated_sources
from bass.ops.norms import RMSNorm


@dataclass(frozen=True)
class LlamaConfig(GatedConfig):
    """A config.json of `model_type: llama`."""

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    attention_bias: bool = False
    mlp_bias: bool = False


@final
class Llama(RotaryDecoder):
    """A decoder of the Llama family."""

    config_type: ClassVar[type[FamilyConfig]] = LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        bias = c.attention_bias
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype, bias, bias, c.mlp_bias)
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: LlamaConfig) -> dict[str, WeightSource]:
        bias = config.attention_bias
        return gated_sources(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)
