"""ERNIE 4.5, its dense models (Baidu, 2025): Llama with rotary embedding in adjacent pairs."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.rope import pair_order
from bass.models.sources import WeightSource, gated_sources, head_rows
from bass.ops.norms import RMSNorm


@dataclass(frozen=True)
class Ernie45Config(GatedConfig):
    """A config.json of `model_type: ernie4_5`."""

    model_type: ClassVar[str] = "ernie4_5"
    architecture: ClassVar[str] = "Ernie4_5ForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = GatedConfig.assumes | {
        "compression_ratio": (1.0, None)
    }
    vocab_size: int = 103424
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 18
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rope_theta: float = 500000.0
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    use_bias: bool = False


@final
class Ernie45(RotaryDecoder):
    """A decoder of the ERNIE 4.5 family."""

    config_type: ClassVar[type[FamilyConfig]] = Ernie45Config

    def __init__(
        self,
        config: Ernie45Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype, c.use_bias, c.use_bias, c.use_bias)
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: Ernie45Config) -> dict[str, WeightSource]:
        c, bias = config, config.use_bias
        order = pair_order(c.head_dim, c.head_dim, interleaved=True)
        rows = head_rows(order, c.num_attention_heads, c.num_key_value_heads)
        return gated_sources(c, qkv_bias=bias, out_bias=bias, mlp_bias=bias, qkv_rows=rows)
