"""Granite 3 (IBM, 2024): Llama with a multiplier of the embedding, of both summands of a block, of
scores and of logits.
"""

from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces import Attend
from bass.models.config import GatedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Positive, Size
from bass.models.layers import DecoderBlock, GatedMLP, LayerFactory, SparseMLP
from bass.ops.residual import Residual
from bass.records import AttentionRule, Rotation


@dataclass(frozen=True)
class GraniteConfig(GatedConfig):
    """A config.json of `model_type: granite`.

    `attention_multiplier` is the scale of scores; logits are divided by `logits_scaling`.
    """

    model_type = "granite"
    architecture = "GraniteForCausalLM"
    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: int = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    logits_scaling: Positive = 1.0

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return (AttentionRule(self.attention_multiplier),) * self.num_hidden_layers


class ScaledBlock(DecoderBlock):
    """x + by · attention(norm(x)), then x + by · mlp(norm(x))."""

    def __init__(self, by: float, *layers: Any) -> None:
        super().__init__(*layers)
        self.by = by

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        attended = self.attention(x.normed(self.attention_norm), rotation, attend, layer)
        x = x.plus(attended, scale=self.by)
        return x.plus(self.mlp(x.normed(self.mlp_norm)), scale=self.by)


class GraniteDecoder(RotaryDecoder):
    """The multipliers of blocks, of the embedding and of the logits."""

    def block(self, c: Any, make: LayerFactory, layer: int) -> ScaledBlock:
        attention = make.attention(c.attention_bias, c.attention_bias)
        layers = make.norm(), attention, make.norm(), self.mlp(c, make)
        return ScaledBlock(c.residual_multiplier, *layers)

    def mlp(self, c: Any, make: LayerFactory) -> GatedMLP | SparseMLP:
        """The MLP of a block."""
        return make.gated_mlp(c.mlp_bias)

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        return super().embedded(tokens, positions) * self.config.embedding_multiplier

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden) / self.config.logits_scaling


@final
class Granite(GraniteDecoder):
    """A decoder of the Granite family."""

    config_type = GraniteConfig
