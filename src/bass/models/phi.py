"""Phi-1, Phi-1.5 and Phi-2 (Li et al., 2023): GPT-J's parallel block with biases everywhere, and
rotary embedding on a part of each head.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig
from bass.models.config_partial import PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, Parallel
from bass.models.sources import WeightSource, ungated_sources, with_bias
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class PhiConfig(PartialRotaryConfig):
    """A config.json of `model_type: phi`."""

    model_type: ClassVar[str] = "phi"
    architecture: ClassVar[str] = "PhiForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("gelu_new", *ACTIVATIONS),
        "qk_layernorm": (False,),
    }
    vocab_size: int = 51200
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = 24
    num_attention_heads: int = 32
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5


@final
class Phi(RotaryDecoder):
    """A decoder of the Phi family."""

    config_type: ClassVar[type[FamilyConfig]] = PhiConfig

    def __init__(
        self,
        config: PhiConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype, c.rotary_dim, head_bias=True)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        self.blocks = nn.ModuleList(
            Parallel(
                LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype),
                Attention(c.hidden_size, heads, device, dtype, bias=True, out_bias=True),
                None,
                MLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: PhiConfig) -> dict[str, WeightSource]:
        names = {
            "norm": "final_layernorm",
            "attention_norm": "input_layernorm",
            "attention.out": "self_attn.dense",
            "mlp.up": "mlp.fc1",
            "mlp.down": "mlp.fc2",
        }
        found = ungated_sources(config, names, True, True, config.qkv_rows)
        head = with_bias("head", ["lm_head"], (config.vocab_size,))
        if config.tie_word_embeddings:
            return found | {"head_bias": head["head.bias"]}
        return found | head
