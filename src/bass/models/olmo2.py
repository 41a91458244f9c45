"""OLMo 2 (Walsh et al., 2025): norms after attention and MLP, and of queries and keys over all
heads.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig
from bass.models.decoder import RotaryDecoder, reordered_block
from bass.models.sources import (
    REORDERED_NORMS,
    WeightSource,
    gated_sources,
    projection_norm_sources,
)
from bass.ops.norms import ProjectionNorm, RMSNorm


@dataclass(frozen=True)
class Olmo2Config(GatedConfig):
    """A config.json of `model_type: olmo2`."""

    model_type: ClassVar[str] = "olmo2"
    architecture: ClassVar[str] = "Olmo2ForCausalLM"
    vocab_size: int = 50304
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False


@final
class Olmo2(RotaryDecoder):
    """A decoder of the OLMo 2 family."""

    config_type: ClassVar[type[FamilyConfig]] = Olmo2Config

    def __init__(
        self,
        config: Olmo2Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        self.blocks = nn.ModuleList(
            reordered_block(
                c,
                device,
                dtype,
                ProjectionNorm(heads, c.rms_norm_eps, device, dtype),
                c.attention_bias,
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: Olmo2Config) -> dict[str, WeightSource]:
        bias = config.attention_bias
        found = gated_sources(config, REORDERED_NORMS, qkv_bias=bias, out_bias=bias)
        return found | projection_norm_sources(config)
