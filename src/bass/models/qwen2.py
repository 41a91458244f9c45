"""Qwen 2 and 2.5 (Yang et al., 2024): Llama with biases on queries, keys and values, and windows in
the upper layers.

Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen.
"""

from dataclasses import dataclass
from typing import Any

from bass.models.config import WindowedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm


@dataclass(frozen=True)
class Qwen2Config(WindowedConfig):
    """A config.json of `model_type: qwen2`."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"


class Qwen2(RotaryDecoder):
    config_type = Qwen2Config

    def block(self, c: Any, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, bias=True, out_bias=False), GatedMLP(make))
