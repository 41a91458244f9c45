"""GLM-4 (GLM-4-0414; Zeng et al., 2024): norms around each half of a block, and rotary embedding on
a part of each head, in adjacent pairs.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig
from bass.models.config_partial import PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, SandwichNorm
from bass.models.sources import WeightSource, fused_gate_up, gated_sources
from bass.ops.norms import RMSNorm

NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_self_attn_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_mlp_layernorm",
}


@dataclass(frozen=True)
class Glm4Config(PartialRotaryConfig, GatedConfig):
    """A config.json of `model_type: glm4`."""

    model_type: ClassVar[str] = "glm4"
    architecture: ClassVar[str] = "Glm4ForCausalLM"
    interleaved: ClassVar[bool] = True
    vocab_size: int = 151552
    hidden_size: int = 4096
    intermediate_size: int = 13696
    num_hidden_layers: int = 40
    num_attention_heads: int = 32
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True

    def to_json(self) -> dict[str, Any]:
        # the default of `transformers` may lie beyond the vocabulary
        return super().to_json() | {"pad_token_id": None}


@final
class Glm4(RotaryDecoder):
    """A decoder of the GLM-4 family."""

    config_type: ClassVar[type[FamilyConfig]] = Glm4Config

    def __init__(
        self,
        config: Glm4Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype, c.rotary_dim)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)

        def norm() -> RMSNorm:
            return RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

        self.blocks = nn.ModuleList(
            SandwichNorm(
                norm(),
                Attention(c.hidden_size, heads, device, dtype, c.attention_bias),
                norm(),
                norm(),
                GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype),
                norm(),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = norm()

    @classmethod
    def sources(cls, config: Glm4Config) -> dict[str, WeightSource]:
        c = config
        found = gated_sources(c, NORMS, qkv_bias=c.attention_bias, qkv_rows=c.qkv_rows)
        return found | fused_gate_up(c)
