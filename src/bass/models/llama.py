"""The Llama family: RMSNorm, rotary positions, grouped-query attention, gated MLP (Touvron et al.,
2023).

Llama 1 to 3, Code Llama, TinyLlama, SmolLM, DeepSeek-Coder.
"""

from dataclasses import dataclass
from typing import Any

from bass.models.config import RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm


@dataclass(frozen=True)
class LlamaConfig(RotaryConfig):
    """A config.json of `model_type: llama`."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    attention_bias: bool = False
    mlp_bias: bool = False


class Llama(RotaryDecoder):
    config_type = LlamaConfig

    def block(self, c: Any, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, c.attention_bias), GatedMLP(make, c.mlp_bias))
