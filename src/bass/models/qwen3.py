"""Qwen 3 (Yang et al., 2025): Llama with normalised queries and keys, and windows in the upper
layers.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import WindowedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm


@dataclass(frozen=True)
class Qwen3Config(WindowedConfig):
    """A config.json of `model_type: qwen3`."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    head_dim: int = 128
    attention_bias: bool = False


@final
class Qwen3(RotaryDecoder):
    config_type = Qwen3Config

    def block(self, c: Qwen3Config, make: LayerFactory, layer: int) -> PreNorm:
        attention = Attention(make, c.attention_bias, qk_norm=make.head_norm())
        return PreNorm(make, attention, GatedMLP(make))
