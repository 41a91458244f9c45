"""Mistral (Jiang et al., 2023): Llama with a sliding window in every layer; Ministral (2024) has a
kind for each layer, sliding or full.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import LayerTypesConfig, SlidingConfig
from bass.models.decoder import RotaryDecoder


@dataclass(frozen=True)
class MistralConfig(SlidingConfig):
    """A config.json of `model_type: mistral`."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096


@final
class Mistral(RotaryDecoder):
    config_type = MistralConfig


@dataclass(frozen=True)
class MinistralConfig(MistralConfig, LayerTypesConfig):
    """A config.json of `model_type: ministral`."""

    model_type = "ministral"
    architecture = "MinistralForCausalLM"

    @property
    def period(self) -> int:
        return 1 if self.sliding_window is None else 0


@final
class Ministral(RotaryDecoder):
    config_type = MinistralConfig
