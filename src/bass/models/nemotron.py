"""Nemotron-4 and Minitron (Parmar et al., 2024): squared ReLU, norms whose weights are stored as
their distance from 1, and rotary embedding on a part of each head.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

from bass.models.config import AttributeMap, PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, LayerFactory, PreNorm
from bass.models.sources import WeightSource
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class NemotronConfig(PartialRotaryConfig):
    """A config.json of `model_type: nemotron`."""

    model_type = "nemotron"
    architecture = "NemotronForCausalLM"
    attribute_map: ClassVar[AttributeMap] = {"rms_norm_eps": "norm_eps"}
    max_position_embeddings: int = 4096
    hidden_act: str = "relu2"
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False


@final
class Nemotron(RotaryDecoder):
    config_type = NemotronConfig
    norm_type = LayerNorm

    def block(self, c: NemotronConfig, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, c.attention_bias), MLP(make, c.mlp_bias))

    @classmethod
    def sources(cls, config: NemotronConfig) -> dict[str, WeightSource]:
        return {
            name: replace(source, plus=1.0) if name.endswith("norm.weight") else source
            for name, source in super().sources(config).items()
        }
