"""Gemma 3, its text models (Kamath et al., 2025): Gemma 2 with normalised queries
and keys, and a rotary base for each kind of layer.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, AttributeMap, Base, LocalRotaryConfig
from bass.models.fields import Positive, Size
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
    vocab_size: Size = 262208
    max_position_embeddings: Size = 131072
    rope_theta: Base = 1000000.0
    rope_local_base_freq: Base = 10000.0
    period: Size = 6
    final_logit_softcapping: Positive | None = None
    attn_logit_softcapping: Positive | None = None


@final
class Gemma3Text(Gemma2):
    """A decoder of the Gemma 3 family."""

    config_type = Gemma3TextConfig

    def qk_norm(self, make: LayerFactory) -> HeadNorm:
        return make.head_norm(offset=True)
