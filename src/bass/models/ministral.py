"""Ministral (2024): Mistral with a kind for each layer, sliding or full."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FULL, SLIDING, FamilyConfig, check_kinds, layer_rules
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.mistral import MistralConfig
from bass.models.sources import WeightSource, gated_sources
from bass.ops.norms import RMSNorm
from bass.records import AttentionRule


@dataclass(frozen=True)
class MinistralConfig(MistralConfig):
    """A config.json of `model_type: ministral`."""

    model_type: ClassVar[str] = "ministral"
    architecture: ClassVar[str] = "MinistralForCausalLM"
    layer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.kinds, self.num_hidden_layers, self.sliding_window)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        all_layers = FULL if self.sliding_window is None else SLIDING
        return self.layer_types or (all_layers,) * self.num_hidden_layers

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return layer_rules(self.kinds, AttentionRule(self.head_dim**-0.5, self.sliding_window))


@final
class Ministral(RotaryDecoder):
    """A decoder of the Ministral family."""

    config_type: ClassVar[type[FamilyConfig]] = MinistralConfig

    def __init__(
        self,
        config: MinistralConfig,
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
    def sources(cls, config: MinistralConfig) -> dict[str, WeightSource]:
        return gated_sources(config)
