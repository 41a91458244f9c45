"""OLMo 2 (Walsh et al., 2025): norms after attention and MLP, and of queries and keys over all
heads.
"""

from dataclasses import dataclass
from typing import Any

from bass.models.config import GatedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Size
from bass.models.layers import LayerFactory, ReorderedNorm
from bass.models.sources import REORDERED


@dataclass(frozen=True)
class Olmo2Config(GatedConfig):
    """A config.json of `model_type: olmo2`."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    vocab_size: Size = 50304
    hidden_size: Size = 4096
    intermediate_size: int = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False


class Olmo2(RotaryDecoder):
    """A decoder of the OLMo 2 family."""

    config_type = Olmo2Config
    names = RotaryDecoder.names | REORDERED

    def block(self, c: Any, make: LayerFactory, layer: int) -> ReorderedNorm:
        attention = make.attention(c.attention_bias, c.attention_bias, make.projection_norm())
        return ReorderedNorm(make.norm(), attention, make.norm(), make.gated_mlp())
