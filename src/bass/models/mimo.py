"""MiMo (Xiaomi, 2025): Qwen 2 with an own size of heads. `drafter="mtp"` runs its MTP layer."""

from dataclasses import dataclass
from typing import final

from bass.models.qwen2 import Qwen2, Qwen2Config


@dataclass(frozen=True)
class MiMoConfig(Qwen2Config):
    """A config.json of `model_type: mimo`."""

    model_type = "mimo"
    architecture = "MiMoForCausalLM"


@final
class MiMo(Qwen2):
    config_type = MiMoConfig
