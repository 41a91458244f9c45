"""Qwen 3 (Yang et al., 2025): Llama with normalised queries and keys, and windows in the upper
layers.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, WindowedConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.sources import WeightSource, gated_sources, qk_norm_sources
from bass.ops.norms import HeadNorm, RMSNorm


@dataclass(frozen=True)
class Qwen3Config(WindowedConfig):
    """A config.json of `model_type: qwen3`."""

    model_type: ClassVar[str] = "qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    head_dim: int = 128
    attention_bias: bool = False


@final
class Qwen3(RotaryDecoder):
    """A decoder of the Qwen3 family."""

    config_type: ClassVar[type[FamilyConfig]] = Qwen3Config

    def __init__(
        self,
        config: Qwen3Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads, bias = c.num_attention_heads + c.num_key_value_heads, c.attention_bias
        self.blocks = nn.ModuleList(
            gated_block(
                c,
                device,
                dtype,
                bias,
                bias,
                qk_norm=HeadNorm(heads, c.head_dim, c.rms_norm_eps, device, dtype),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: Qwen3Config) -> dict[str, WeightSource]:
        bias = config.attention_bias
        return gated_sources(config, qkv_bias=bias, out_bias=bias) | qk_norm_sources(config)
