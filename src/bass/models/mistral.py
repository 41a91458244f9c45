"""Mistral (Jiang et al., 2023): Llama with a sliding window in every layer."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig, SlidingConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.sources import WeightSource, gated_sources
from bass.ops.norms import RMSNorm


@dataclass(frozen=True)
class MistralConfig(SlidingConfig, GatedConfig):
    """A config.json of `model_type: mistral`."""

    model_type: ClassVar[str] = "mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096


@final
class Mistral(RotaryDecoder):
    """A decoder of the Mistral family."""

    config_type: ClassVar[type[FamilyConfig]] = MistralConfig

    def __init__(
        self,
        config: MistralConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype) for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: MistralConfig) -> dict[str, WeightSource]:
        return gated_sources(config)
