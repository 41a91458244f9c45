"""Falcon (Almazrouei et al., 2023): attention and MLP side by side; one key-value head, or one for
each group of query heads.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import Config, FamilyConfig, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, Parallel
from bass.models.sources import WeightSource, fused_sources, grouped_rows
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm

OWN_NAMES = {"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"}


@dataclass(frozen=True)
class FalconConfig(RotaryConfig):
    """A config.json of `model_type: falcon`. `num_ln_in_parallel_attn`: norms of a block in the new
    architecture; the old one has one norm, and one key-value head.
    """

    model_type: ClassVar[str] = "falcon"
    architecture: ClassVar[str] = "FalconForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "alibi": (False, None),
        "multi_query": (True,),
        "parallel_attn": (True,),
        "activation": ("gelu", *ACTIVATIONS),
    }
    vocab_size: int = 65024
    hidden_size: int = 4544
    intermediate_size: int = 0  # 0: 4 * hidden_size
    num_hidden_layers: int = 32
    num_attention_heads: int = 71
    tie_word_embeddings: bool = True
    layer_norm_epsilon: float = 1e-5
    activation: str = "gelu"
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
    def norms(self) -> dict[str, str]:
        """The norms of a block, our name -> theirs."""
        if self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1:
            return {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
        return {"attention_norm": "input_layernorm"}

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

    config_type: ClassVar[type[FamilyConfig]] = FalconConfig
    prefix: ClassVar[str] = "transformer."

    def __init__(
        self,
        config: FalconConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, at = config, (torch.device(device), dtype)
        super().__init__(c, *at)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        norm = partial(LayerNorm, c.hidden_size, c.layer_norm_epsilon, *at)
        attention = partial(Attention, c.hidden_size, heads, *at, c.bias, c.bias)
        mlp = partial(MLP, c.hidden_size, c.intermediate_size, c.activation, *at, c.bias)
        self.blocks = nn.ModuleList(
            Parallel(norm(), attention(), norm() if "mlp_norm" in c.norms else None, mlp())
            for _ in range(c.num_hidden_layers)
        )
        self.norm = norm()

    @classmethod
    def sources(cls, config: FalconConfig) -> dict[str, WeightSource]:
        c = config
        ends = {"embed": "word_embeddings", "norm": "ln_f", "head": "lm_head"}
        rows = grouped_rows(c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        return fused_sources(
            c, ends, "transformer.h", "self_attention", c.norms, rows, c.bias, c.bias
        )
