"""EXAONE 4 (LG AI Research, 2025): norms after attention and MLP, normalised queries and keys; in
the large size windows, and every fourth layer with neither a window nor rotary embedding.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from jaxtyping import Int
from torch import Tensor

from bass.models.config import SLIDING, GatedConfig, LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Size
from bass.models.layers import LayerFactory, ReorderedNorm
from bass.models.sources import REORDERED
from bass.records import Rotation


@dataclass(frozen=True)
class Exaone4Config(LayerTypesConfig, GatedConfig):
    """A config.json of `model_type: exaone4`. Models without any window rotate in all layers."""

    model_type = "exaone4"
    architecture = "Exaone4ForCausalLM"
    vocab_size: Size = 102400
    hidden_size: Size = 4096
    intermediate_size: int = 16384
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: int = 32
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 4096
    sliding_window_pattern: int | str | None = 4  # "LLLG": 4

    @property
    def period(self) -> int:
        pattern = self.sliding_window_pattern
        if self.sliding_window is None:
            return 1
        return len(pattern) if isinstance(pattern, str) else pattern or 1


@final
class Exaone4(RotaryDecoder):
    """A decoder of the EXAONE 4 family."""

    config_type = Exaone4Config
    names = RotaryDecoder.names | REORDERED

    def block(self, c: Exaone4Config, make: LayerFactory, layer: int) -> ReorderedNorm:
        attention = make.attention(qk_norm=make.head_norm())
        return ReorderedNorm(make.norm(), attention, make.norm(), make.gated_mlp())

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        rotation, everywhere = self.rotary(positions), self.config.sliding_window is None
        return [rotation if everywhere or kind == SLIDING else None for kind in self.config.kinds]
