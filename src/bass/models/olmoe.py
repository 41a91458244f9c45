"""OLMoE (Muennighoff et al., 2025): a mixture of experts in every layer, and norms of queries and
keys over all heads.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, LayerFactory, PreNorm, SparseMLP


@dataclass(frozen=True)
class OlmoeConfig(RotaryConfig):
    """A config.json of `model_type: olmoe`."""

    model_type = "olmoe"
    architecture = "OlmoeForCausalLM"
    assumes: ClassVar[Assumed] = {"clip_qkv": (None,)}
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    num_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False


@final
class Olmoe(RotaryDecoder):
    config_type = OlmoeConfig

    def block(self, c: OlmoeConfig, make: LayerFactory, layer: int) -> PreNorm:
        attention = Attention(make, c.attention_bias, qk_norm=make.projection_norm())
        mlp = SparseMLP(make, c.num_experts, c.num_experts_per_tok, c.norm_topk_prob)
        return PreNorm(make, attention, mlp)
