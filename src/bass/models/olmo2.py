"""OLMo 2 (Walsh et al., 2025): norms after attention and MLP, and of queries and keys over all
heads.
"""

from dataclasses import dataclass
from typing import Any

from bass.models.config import RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, ReorderedNorm
from bass.models.sources import REORDERED


@dataclass(frozen=True)
class Olmo2Config(RotaryConfig):
    """A config.json of `model_type: olmo2`."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False


class Olmo2(RotaryDecoder):
    config_type = Olmo2Config
    names = RotaryDecoder.names | REORDERED

    def block(self, c: Any, make: LayerFactory, layer: int) -> ReorderedNorm:
        attention = Attention(make, c.attention_bias, qk_norm=make.projection_norm())
        return ReorderedNorm(make, attention, GatedMLP(make))
