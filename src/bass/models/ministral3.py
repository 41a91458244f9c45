"""Ministral 3 (2025): Mistral with yarn, and queries that grow with their position.

Queries grow from the original context on, in steps. Checkpoints support the original context, in
which their factor is 1.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from bass.models.decoder import RotaryDecoder
from bass.models.mistral import MistralConfig

BETA, ORIGINAL = "llama_4_scaling_beta", "original_max_position_embeddings"
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, ORIGINAL: 16384, BETA: 0.1,
    "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Ministral3Config(MistralConfig):
    """A config.json of `model_type: ministral3`."""

    model_type = "ministral3"
    architecture = "Ministral3ForCausalLM"
    default_rope: ClassVar[dict[str, Any]] = YARN
    head_dim: int = 128
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None
    llama_4_scaling_beta: float = 0.0

    def to_json(self) -> dict[str, Any]:
        found = super().to_json()
        return found | {"rope_scaling": (found["rope_scaling"] or {}) | {BETA: found.pop(BETA)}}

    @property
    def context(self) -> int:
        scaling, whole = self.rope_scaling, super().context
        if scaling is None or not self.llama_4_scaling_beta:
            return whole
        return min(scaling.original_max_position_embeddings or whole, whole)


@final
class Ministral3(RotaryDecoder):
    config_type = Ministral3Config
