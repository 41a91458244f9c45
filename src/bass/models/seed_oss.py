"""Seed-OSS (ByteDance, 2025): Llama with biases of queries, keys and values, and its own head
size.
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
class SeedOssConfig(GatedConfig):
    """A config.json of `model_type: seed_oss`."""

    model_type: ClassVar[str] = "seed_oss"
    architecture: ClassVar[str] = "SeedOssForCausalLM"
    vocab_size: int = 155136
    hidden_size: int = 4096
    intermediate_size: int = 27648
    num_hidden_layers: int = 64
    num_attention_heads: int = 80
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 524288
    attention_bias: bool = True
    attention_out_bias: bool = False
    mlp_bias: bool = False


@final
class SeedOss(RotaryDecoder):
    """A decoder of the Seed-OSS family."""

    config_type: ClassVar[type[FamilyConfig]] = SeedOssConfig

    def __init__(
        self,
        config: SeedOssConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype, c.attention_bias, c.attention_out_bias, c.mlp_bias)
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: SeedOssConfig) -> dict[str, WeightSource]:
        c = config
        return gated_sources(
            c, qkv_bias=c.attention_bias, out_bias=c.attention_out_bias, mlp_bias=c.mlp_bias
        )
