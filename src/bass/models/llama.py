"""The Llama family: RMSNorm, rotary positions, grouped-query attention, gated MLP (Touvron et al.,
2023).

Llama 1 to 3, Code Llama, TinyLlama, SmolLM, DeepSeek-Coder.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import GatedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import LayerFactory, PreNorm


@dataclass(frozen=True)
class LlamaConfig(GatedConfig):
    """A config.json of `model_type: llama`."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    attention_bias: bool = False
    mlp_bias: bool = False


@final
class Llama(RotaryDecoder):
    """A decoder of the Llama family."""

    config_type = LlamaConfig

    def block(self, c: LlamaConfig, make: LayerFactory, layer: int) -> PreNorm:
        attention = make.attention(c.attention_bias, c.attention_bias)
        return PreNorm(make.norm(), attention, make.norm(), make.gated_mlp(c.mlp_bias))
