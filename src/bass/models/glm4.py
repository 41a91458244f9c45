"""GLM-4 (GLM-4-0414; Zeng et al., 2024): norms around each half of a block, and rotary embedding on
a part of each head, in adjacent pairs.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, SandwichNorm


@dataclass(frozen=True)
class Glm4Config(PartialRotaryConfig):
    """A config.json of `model_type: glm4`."""

    model_type = "glm4"
    architecture = "Glm4ForCausalLM"
    interleaved = True
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True


@final
class Glm4(RotaryDecoder):
    config_type = Glm4Config
    names = RotaryDecoder.names | {
        "attention_out_norm": "post_self_attn_layernorm",
        "mlp_out_norm": "post_mlp_layernorm",
        "mlp.gate_up": "mlp.gate_up_proj",
    }

    def block(self, c: Glm4Config, make: LayerFactory, layer: int) -> SandwichNorm:
        return SandwichNorm(make, Attention(make, c.attention_bias, False), GatedMLP(make))
