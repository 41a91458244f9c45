"""Gemma 2 (Riviere et al., 2024): norms around each half of a block, soft caps, and a window in
every other layer.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GemmaConfig
from bass.models.decoder import GemmaDecoder, gemma_block
from bass.models.sources import GEMMA_NORMS, WeightSource, gated_sources


@dataclass(frozen=True)
class Gemma2Config(GemmaConfig):
    """A config.json of `model_type: gemma2`."""

    model_type: ClassVar[str] = "gemma2"
    architecture: ClassVar[str] = "Gemma2ForCausalLM"
    vocab_size: int = 256000
    max_position_embeddings: int = 8192
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0


@final
class Gemma2(GemmaDecoder):
    """A decoder of the Gemma 2 family."""

    config_type: ClassVar[type[FamilyConfig]] = Gemma2Config

    def __init__(
        self,
        config: Gemma2Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        self.blocks = nn.ModuleList(
            gemma_block(c, device, dtype) for _ in range(c.num_hidden_layers)
        )

    @classmethod
    def sources(cls, config: Gemma2Config) -> dict[str, WeightSource]:
        bias = config.attention_bias
        return gated_sources(config, GEMMA_NORMS, qkv_bias=bias, out_bias=bias)
