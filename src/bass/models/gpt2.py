"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases in every product except the
head, weights stored [in, out].
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from bass.models.config import Assumed, AttributeMap, FamilyConfig
from bass.models.decoder import CausalDecoder
from bass.models.layers import MLP, Attention, LayerFactory, PreNorm
from bass.models.sources import GPT, WeightSource
from bass.ops.norms import LayerNorm
from bass.ops.residual import embedding
from bass.records import AttentionRule


@dataclass(frozen=True, kw_only=True)
class GPT2Config(FamilyConfig):
    """A config.json of `model_type: gpt2`."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    assumes: ClassVar[Assumed] = {
        "add_cross_attention": (False,), "scale_attn_by_inverse_layer_idx": (False,)
    }  # fmt: skip
    attribute_map: ClassVar[AttributeMap] = {
        "hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head", "num_key_value_heads": None, "head_dim": None,
        "max_position_embeddings": "n_positions", "hidden_act": "activation_function",
        "rms_norm_eps": "layer_norm_epsilon",
    }  # fmt: skip
    intermediate_size: int = 0  # 0: 4 * hidden_size
    max_position_embeddings: int = 1024
    hidden_act: str = "gelu_new"
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = True

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return (AttentionRule(scale),) * self.num_hidden_layers


class GPT2(CausalDecoder):
    """A decoder of the GPT-2 family. `transposed`: endings of matrices stored [in, out]."""

    config_type = GPT2Config
    norm_type = LayerNorm
    names = GPT
    prefix = "transformer."
    transposed: ClassVar[tuple[str, ...]] = (
        ".qkv.weight", ".out.weight", ".up.weight", ".down.weight"
    )  # fmt: skip

    def setup(self, c: Any, make: LayerFactory) -> None:
        self.position_embed = make.empty(c.max_position_embeddings, c.hidden_size)

    def block(self, c: Any, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, bias=True), MLP(make, bias=True))

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        placed = embedding(positions.clamp(min=0), self.position_embed)
        return super().embedded(tokens, positions) + placed

    @classmethod
    def sources(cls, config: Any) -> dict[str, WeightSource]:
        return {
            name: replace(source, transposed=name.endswith(cls.transposed))
            for name, source in super().sources(config).items()
        }
