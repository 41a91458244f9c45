"""Mixtral (Jiang et al., 2024): Mistral with a mixture of experts in every layer."""

from dataclasses import dataclass
from typing import final

from bass.models.config import SlidingConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, LayerFactory, PreNorm, SparseMLP

EXPERT = "block_sparse_moe.experts.{}"


@dataclass(frozen=True)
class MixtralConfig(SlidingConfig):
    """A config.json of `model_type: mixtral`."""

    model_type = "mixtral"
    architecture = "MixtralForCausalLM"
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-5
    num_local_experts: int = 8
    num_experts_per_tok: int = 2


@final
class Mixtral(RotaryDecoder):
    config_type = MixtralConfig
    names = RotaryDecoder.names | {
        "mlp.router": "block_sparse_moe.gate",
        "mlp.experts.gate_up": (f"{EXPERT}.w1.weight", f"{EXPERT}.w3.weight"),
        "mlp.experts.down": f"{EXPERT}.w2.weight",
    }

    def block(self, c: MixtralConfig, make: LayerFactory, layer: int) -> PreNorm:
        mlp = SparseMLP(make, c.num_local_experts, c.num_experts_per_tok)
        return PreNorm(make, Attention(make), mlp)
