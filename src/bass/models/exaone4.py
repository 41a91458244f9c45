"""EXAONE 4 (LG AI Research, 2025): norms after attention and MLP, normalised queries and keys; in
the large size windows, and every fourth layer with neither a window nor rotary embedding.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import final

from bass.errors import CheckpointError
from bass.models.config import FULL, GLOBAL, SLIDING, LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, ReorderedNorm
from bass.models.sources import REORDERED


@dataclass(frozen=True)
class Exaone4Config(LayerTypesConfig):
    """A config.json of `model_type: exaone4`. Models without any window rotate in all layers."""

    model_type = "exaone4"
    architecture = "Exaone4ForCausalLM"
    num_key_value_heads: int = 32
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 4096
    sliding_window_pattern: int | str | None = 4  # 4: "LLLG", local and global, repeated

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        pattern = self.sliding_window_pattern or "G"
        if isinstance(pattern, int):
            pattern = "L" * (pattern - 1) + "G"
        if not set(pattern.upper()) <= {"L", "G"}:
            raise CheckpointError(
                f"`sliding_window_pattern` of the config is {pattern!r}: write it with L, a layer "
                "with a window, and G, one without."
            )
        letters = itertools.cycle("G" if self.sliding_window is None else pattern.upper())
        by_letter = {"L": SLIDING, "G": FULL}
        return self.layer_types or tuple(
            by_letter[letter] for letter in itertools.islice(letters, self.num_hidden_layers)
        )

    @cached_property
    def rotations(self) -> tuple[str | None, ...]:
        everywhere = self.sliding_window is None
        return tuple(GLOBAL if everywhere or kind == SLIDING else None for kind in self.kinds)


@final
class Exaone4(RotaryDecoder):
    config_type = Exaone4Config
    names = RotaryDecoder.names | REORDERED

    def block(self, c: Exaone4Config, make: LayerFactory, layer: int) -> ReorderedNorm:
        return ReorderedNorm(make, Attention(make, qk_norm=make.head_norm()), GatedMLP(make))
