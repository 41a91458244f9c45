"""Falcon (Almazrouei et al., 2023): attention and MLP side by side; one key-value head, or one for
each group of query heads.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from bass.models.config import Assumed, Config, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Act, Size
from bass.models.layers import LayerFactory, Parallel
from bass.models.sources import WeightSource, grouped_rows, named_sources
from bass.ops.norms import LayerNorm

NAMES = RotaryDecoder.names | {
    "embed": "transformer.word_embeddings.weight",
    "norm": "transformer.ln_f",
    "blocks": "transformer.h",
    "attention.qkv": "self_attention.query_key_value",
    "attention.out": "self_attention.dense",
    "mlp_norm": "ln_mlp",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
OWN_NAMES = {"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"}


@dataclass(frozen=True)
class FalconConfig(RotaryConfig):
    """A config.json of `model_type: falcon`. `num_ln_in_parallel_attn`: norms of a block in the new
    architecture; the old one has one norm, and one key-value head.
    """

    model_type = "falcon"
    architecture = "FalconForCausalLM"
    assumes: ClassVar[Assumed] = {
        "alibi": (False, None), "multi_query": (True,), "parallel_attn": (True,)
    }  # fmt: skip
    attribute_map: ClassVar[dict[str, str]] = {
        "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation"
    }  # fmt: skip
    vocab_size: Size = 65024
    hidden_size: Size = 4544
    intermediate_size: int = 0  # 0: 4 * hidden_size
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 71
    tie_word_embeddings: bool = True
    layer_norm_epsilon: float = 1e-5
    activation: Act = "gelu"
    bias: bool = False
    new_decoder_architecture: bool = False
    num_ln_in_parallel_attn: int | None = None  # 2

    def __post_init__(self) -> None:
        inner = self.intermediate_size or 4 * self.hidden_size
        object.__setattr__(self, "intermediate_size", inner)
        if not self.new_decoder_architecture:
            object.__setattr__(self, "num_key_value_heads", 1)
        super().__post_init__()

    @property
    def two_norms(self) -> bool:
        """Whether attention and MLP have a norm each."""
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1

    @property
    def qkv_rows(self) -> np.ndarray:
        return grouped_rows(*self.heads)

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        return super().from_json(config | {k: config.get(v) for k, v in OWN_NAMES.items()})

    def to_json(self) -> dict[str, Any]:
        found = super().to_json()
        del found["head_dim"]
        return {OWN_NAMES.get(name, name): value for name, value in found.items()}


@final
class Falcon(RotaryDecoder):
    """A decoder of the Falcon family."""

    config_type = FalconConfig
    norm_type = LayerNorm
    prefix = "transformer."

    def block(self, c: FalconConfig, make: LayerFactory, layer: int) -> Parallel:
        attention, second = make.attention(c.bias, c.bias), make.norm() if c.two_norms else None
        return Parallel(make.norm(), attention, second, make.mlp(c.bias))

    @classmethod
    def sources(cls, config: FalconConfig) -> dict[str, WeightSource]:
        first = {"attention_norm": "ln_attn"} if config.two_norms else {}
        return named_sources(cls(config, "meta"), NAMES | first)
