"""Granite 3 (IBM, 2024): Llama with a multiplier of the embedding, of both summands of a block, of
scores and of logits.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from bass.models.config import RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, Hidden, LayerFactory, PreNorm, SparseMLP
from bass.ops.linear import Product
from bass.ops.residual import Residual
from bass.records import AttentionRule


@dataclass(frozen=True)
class GraniteConfig(RotaryConfig):
    """A config.json of `model_type: granite`.

    `attention_multiplier` is the scale of scores; logits are divided by `logits_scaling`.
    """

    model_type = "granite"
    architecture = "GraniteForCausalLM"
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    logits_scaling: float = 1.0

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return (AttentionRule(self.attention_multiplier),) * self.num_hidden_layers


class ScaledBlock(PreNorm):
    """x + by · attention(norm(x)), then x + by · mlp(norm(x))."""

    def __init__(self, by: float, *layers: Any) -> None:
        super().__init__(*layers)
        self.by = by

    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        x = x.plus(attended, scale=self.by)
        return x.plus(self.mlp(x.normed(self.mlp_norm)), scale=self.by)


class Granite(RotaryDecoder):
    config_type = GraniteConfig

    def block(self, c: Any, make: LayerFactory, layer: int) -> ScaledBlock:
        layers = Attention(make, c.attention_bias), self.mlp(c, make)
        return ScaledBlock(c.residual_multiplier, make, *layers)

    def mlp(self, c: Any, make: LayerFactory) -> GatedMLP | SparseMLP:
        """The MLP of a block."""
        return GatedMLP(make, c.mlp_bias)

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        return super().embedded(tokens, positions) * self.config.embedding_multiplier

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden) / self.config.logits_scaling
