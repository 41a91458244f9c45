"""Falcon (Almazrouei et al., 2023): attention and MLP side by side; one key-value head, or one for
each group of query heads.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.models.config import Assumed, AttributeMap, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, LayerFactory, Parallel
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


@dataclass(frozen=True, kw_only=True)
class FalconConfig(RotaryConfig):
    """A config.json of `model_type: falcon`. `num_ln_in_parallel_attn`: norms of a block in the new
    architecture; the old one has one norm, and one key-value head.
    """

    model_type = "falcon"
    architecture = "FalconForCausalLM"
    assumes: ClassVar[Assumed] = {
        "alibi": (False, None), "multi_query": (True,), "parallel_attn": (True,)
    }  # fmt: skip
    attribute_map: ClassVar[AttributeMap] = {
        "intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads",
        "head_dim": None, "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation",
    }  # fmt: skip
    intermediate_size: int = 0  # 0: 4 * hidden_size
    hidden_act: str = "gelu"
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    bias: bool = False
    new_decoder_architecture: bool = False
    num_ln_in_parallel_attn: int | None = None  # 2

    def __post_init__(self) -> None:
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


@final
class Falcon(RotaryDecoder):
    config_type = FalconConfig
    norm_type = LayerNorm
    prefix = "transformer."

    def block(self, c: FalconConfig, make: LayerFactory, layer: int) -> Parallel:
        return Parallel(make, Attention(make, c.bias), MLP(make, c.bias), c.two_norms)

    @classmethod
    def sources(cls, config: FalconConfig) -> dict[str, WeightSource]:
        first = {"attention_norm": "ln_attn"} if config.two_norms else {}
        return named_sources(cls(config, "meta"), NAMES | first)
