"""Gemma 3, its text models (Kamath et al., 2025): Gemma 2 with normalised queries
and keys, and a rotary base for each kind of layer.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, AttributeMap, LocalRotaryConfig
from bass.models.gemma2 import Gemma2, Gemma2Config
from bass.models.layers import LayerFactory
from bass.ops.norms import HeadNorm


@dataclass(frozen=True)
class Gemma3TextConfig(Gemma2Config, LocalRotaryConfig):
    """A config.json of `model_type: gemma3_text`."""

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    # The field exists, and `transformers` ignores it.
    assumes: ClassVar[Assumed] = {"attn_logit_softcapping": (None,)}
    attribute_map: ClassVar[AttributeMap] = Gemma2Config.attribute_map | {
        "period": "sliding_window_pattern"
    }
    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    rope_theta: float = 1000000.0
    rope_local_base_freq: float = 10000.0
    period: int = 6
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None


@final
class Gemma3Text(Gemma2):
    config_type = Gemma3TextConfig

    def qk_norm(self, make: LayerFactory) -> HeadNorm:
        return make.head_norm(offset=True)
