"""MiMo (Xiaomi, 2025): Qwen 2 with an own size of heads. `drafter="mtp"` runs its MTP layer."""

from dataclasses import dataclass
from typing import final

from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm
from bass.models.qwen2 import Qwen2Config


@dataclass(frozen=True)
class MiMoConfig(Qwen2Config):
    """A config.json of `model_type: mimo`."""

    model_type = "mimo"
    architecture = "MiMoForCausalLM"


@final
class MiMo(RotaryDecoder):
    """A decoder of the MiMo family."""

    config_type = MiMoConfig

    def block(self, c: MiMoConfig, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, bias=True, out_bias=False), GatedMLP(make))
