"""Gemma 2 (Riviere et al., 2024): norms around each half of a block, soft caps, and a window in
every other layer.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import GemmaConfig
from bass.models.decoder import GemmaDecoder
from bass.models.fields import Positive, Size


@dataclass(frozen=True)
class Gemma2Config(GemmaConfig):
    """A config.json of `model_type: gemma2`."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    vocab_size: Size = 256000
    max_position_embeddings: Size = 8192
    final_logit_softcapping: Positive | None = 30.0
    attn_logit_softcapping: Positive | None = 50.0


@final
class Gemma2(GemmaDecoder):
    """A decoder of the Gemma 2 family."""

    config_type = Gemma2Config
