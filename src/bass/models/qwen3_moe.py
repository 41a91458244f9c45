"""Qwen 3 with experts (Yang et al., 2025): Qwen 3 with a mixture of experts in most layers."""

from dataclasses import dataclass
from typing import Any, Self, final

from bass.models.config import SlidingConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm, SparseMLP


@dataclass(frozen=True)
class Qwen3MoeConfig(SlidingConfig):
    """A config.json of `model_type: qwen3_moe`. Without any `num_experts`, no layer has some."""

    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    num_key_value_heads: int = 4
    max_position_embeddings: int = 32768
    attention_bias: bool = False
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """As `RotaryConfig.from_json`. Newer files name the number of experts as Mixtral does; the
        window counts only if it is switched on.
        """
        count = config.get("num_experts", config.get("num_local_experts"))
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        return super().from_json(config | {"num_experts": count, "sliding_window": window})

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"use_sliding_window": self.sliding_window is not None}

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        chosen = layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0
        return self.num_experts > 0 and chosen


@final
class Qwen3Moe(RotaryDecoder):
    config_type = Qwen3MoeConfig

    def block(self, c: Qwen3MoeConfig, make: LayerFactory, layer: int) -> PreNorm:
        attention = Attention(make, c.attention_bias, qk_norm=make.head_norm())
        of = c.num_experts, c.num_experts_per_tok, c.norm_topk_prob, c.moe_intermediate_size
        mlp = SparseMLP(make, *of) if c.is_sparse(layer) else GatedMLP(make)
        return PreNorm(make, attention, mlp)
