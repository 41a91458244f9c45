"""Nemotron-4 and Minitron (Parmar et al., 2024): squared ReLU, norms whose weights are stored as
their distance from 1, and rotary embedding on a part of each head.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig
from bass.models.config_partial import PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, PreNorm
from bass.models.sources import LLAMA_NORMS, WeightSource, ungated_sources
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class NemotronConfig(PartialRotaryConfig):
    """A config.json of `model_type: nemotron`."""

    model_type: ClassVar[str] = "nemotron"
    architecture: ClassVar[str] = "NemotronForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {"hidden_act": ("relu2", *ACTIVATIONS)}
    vocab_size: int = 256000
    hidden_size: int = 6144
    intermediate_size: int = 24576
    num_hidden_layers: int = 32
    num_attention_heads: int = 48
    max_position_embeddings: int = 4096
    hidden_act: str = "relu2"
    norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False


@final
class Nemotron(RotaryDecoder):
    """A decoder of the Nemotron family."""

    config_type: ClassVar[type[FamilyConfig]] = NemotronConfig

    def __init__(
        self,
        config: NemotronConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype, c.rotary_dim)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        self.blocks = nn.ModuleList(
            PreNorm(
                LayerNorm(c.hidden_size, c.norm_eps, device, dtype),
                Attention(c.hidden_size, heads, device, dtype, c.attention_bias, c.attention_bias),
                LayerNorm(c.hidden_size, c.norm_eps, device, dtype),
                MLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype, c.mlp_bias),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = LayerNorm(c.hidden_size, c.norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: NemotronConfig) -> dict[str, WeightSource]:
        names = LLAMA_NORMS | {
            "norm": "norm",
            "attention.out": "self_attn.o_proj",
            "mlp.up": "mlp.up_proj",
            "mlp.down": "mlp.down_proj",
        }
        found = ungated_sources(
            config, names, config.attention_bias, config.mlp_bias, config.qkv_rows
        )
        return {
            name: replace(source, plus=1.0) if name.endswith("norm.weight") else source
            for name, source in found.items()
        }
