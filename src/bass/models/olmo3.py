"""OLMo 3 (Ai2, 2025): OLMo 2 with windows in three of four layers, which keep their rotary
embedding where that of the others is scaled.
"""

from dataclasses import dataclass
from typing import Any, final

from bass.models.config import FULL, SLIDING, LocalRotaryConfig
from bass.models.olmo2 import Olmo2, Olmo2Config


@dataclass(frozen=True)
class Olmo3Config(Olmo2Config, LocalRotaryConfig):
    """A config.json of `model_type: olmo3`."""

    model_type = "olmo3"
    architecture = "Olmo3ForCausalLM"
    rope_theta: float = 500000.0
    sliding_window: int | None = 4096
    period = 4

    def to_json(self) -> dict[str, Any]:
        own = super().to_json()
        full = {"rope_type": "default", "rope_theta": self.rope_theta}
        sliding = full | {"rope_theta": own.pop("rope_local_base_freq")}
        full |= own.pop("rope_scaling") or {}
        return own | {"rope_parameters": {FULL: full, SLIDING: sliding}}


@final
class Olmo3(Olmo2):
    config_type = Olmo3Config
