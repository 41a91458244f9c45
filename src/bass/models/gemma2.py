"""Gemma 2 (Riviere et al., 2024): norms around each half of a block, a scaled embedding, soft caps,
their own scale of scores, and a window in every other layer.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.models.config import Assumed, AttributeMap, LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, SandwichNorm
from bass.models.sources import SANDWICH
from bass.ops.norms import HeadNorm, OffsetRMSNorm
from bass.records import AttentionRule


@dataclass(frozen=True)
class Gemma2Config(LayerTypesConfig):
    """A config.json of `model_type: gemma2`."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    assumes: ClassVar[Assumed] = {"use_bidirectional_attention": (False, None)}
    attribute_map: ClassVar[AttributeMap] = {"hidden_act": "hidden_activation"}
    # multimodal folders may leave sizes out
    vocab_size: int = 256000
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    max_position_embeddings: int = 8192
    hidden_act: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    query_pre_attn_scalar: int = 256
    sliding_window: int | None = 4096
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0

    @property
    def rule(self) -> AttentionRule:
        scale = self.query_pre_attn_scalar**-0.5
        return AttentionRule(scale, self.sliding_window, self.attn_logit_softcapping)


class Gemma2(RotaryDecoder):
    config_type = Gemma2Config
    norm_type = OffsetRMSNorm
    names = RotaryDecoder.names | SANDWICH

    def setup(self, c: Any, make: LayerFactory) -> None:
        super().setup(c, make)
        # rounded to the type of the weights
        self.scale = torch.tensor(c.hidden_size**0.5, dtype=make.dtype).item()

    def block(self, c: Any, make: LayerFactory, layer: int) -> SandwichNorm:
        attention = Attention(make, c.attention_bias, qk_norm=self.qk_norm(make))
        return SandwichNorm(make, attention, GatedMLP(make))

    def qk_norm(self, make: LayerFactory) -> HeadNorm | None:
        """The norm of queries and keys in each block."""
        return None

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        return super().embedded(tokens, positions) * self.scale

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        logits, cap = super().unembed(hidden), self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)
