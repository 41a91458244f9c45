"""Gemma 3, its text models (Kamath et al., 2025): Gemma 2 with normalised queries
and keys, and a rotary base for each kind of layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Int
from torch import Tensor

from bass.models.config import FULL, SLIDING, Assumed, Base, GemmaConfig, rope_by_kind
from bass.models.decoder import GemmaDecoder
from bass.models.fields import Size
from bass.models.layers import LayerFactory
from bass.ops.norms import HeadNorm, offset_scaled
from bass.records import Rotation


@dataclass(frozen=True)
class Gemma3TextConfig(GemmaConfig):
    """A config.json of `model_type: gemma3_text`.

    `rope_theta` and `rope_scaling` apply to the layers without a window, `rope_local_base_freq` to
    those with one. Newer files have both in `rope_parameters`, by the kind of layer.
    """

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    # The field exists, and `transformers` ignores it.
    assumes: ClassVar[Assumed] = {"attn_logit_softcapping": (None,)}
    vocab_size: Size = 262208
    max_position_embeddings: Size = 131072
    rope_theta: Base = 1000000.0
    rope_local_base_freq: Base = 10000.0
    sliding_window_pattern: Size = 6

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Gemma3TextConfig":
        """As above."""
        full, sliding = rope_by_kind(config, cls.model_type)
        local = {"rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else {}
        return super().from_json(config | local | {"rope_parameters": None, "rope_scaling": full})

    @property
    def period(self) -> int:
        return self.sliding_window_pattern


@final
class Gemma3Text(GemmaDecoder):
    """A decoder of the Gemma 3 family."""

    config_type = Gemma3TextConfig

    def setup(self, c: Gemma3TextConfig, make: LayerFactory) -> None:
        super().setup(c, make)
        self.local_rotary = make.rotary(c.rope_local_base_freq, c.max_position_embeddings)

    def qk_norm(self, make: LayerFactory) -> HeadNorm:
        return make.head_norm(offset_scaled)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        by_kind = {FULL: self.rotary(positions), SLIDING: self.local_rotary(positions)}
        return [by_kind[kind] for kind in self.config.kinds]
