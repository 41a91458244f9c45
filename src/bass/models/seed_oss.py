"""Seed-OSS (ByteDance, 2025): Llama with biases of queries, keys and values, and its own head
size.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm


@dataclass(frozen=True)
class SeedOssConfig(RotaryConfig):
    """A config.json of `model_type: seed_oss`."""

    model_type = "seed_oss"
    architecture = "SeedOssForCausalLM"
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 524288
    attention_bias: bool = True
    attention_out_bias: bool = False
    mlp_bias: bool = False


@final
class SeedOss(RotaryDecoder):
    config_type = SeedOssConfig

    def block(self, c: SeedOssConfig, make: LayerFactory, layer: int) -> PreNorm:
        attention = Attention(make, c.attention_bias, c.attention_out_bias)
        return PreNorm(make, attention, GatedMLP(make, c.mlp_bias))
