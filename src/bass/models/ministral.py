"""Ministral (2024): Mistral with a kind for each layer, sliding or full."""

from dataclasses import dataclass
from typing import final

from bass.models.config import LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.mistral import MistralConfig


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
    """A decoder of the Ministral family."""

    config_type = MinistralConfig
