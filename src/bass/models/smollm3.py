"""SmolLM 3 (Bakouch et al., 2025): Llama without rotary embedding in every fourth layer."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from bass.models.config import FULL, GLOBAL, SLIDING, WindowedConfig
from bass.models.llama import Llama


@dataclass(frozen=True)
class SmolLM3Config(WindowedConfig):
    """A config.json of `model_type: smollm3`.

    `no_rope_layers`: for each layer, 1 if it has rotary embedding, and 0 if not. By default every
    `no_rope_layer_interval`-th layer has none. Those without have the windows, if there are any.
    """

    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    num_key_value_heads: int = 4
    rope_theta: float = 2000000.0
    tie_word_embeddings: bool = True
    sliding_window: int | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    attention_bias: bool = False
    mlp_bias: bool = False

    @cached_property
    def rotations(self) -> tuple[str | None, ...]:
        every, layers = self.no_rope_layer_interval, range(self.num_hidden_layers)
        rotated = self.no_rope_layers
        if rotated is None:
            rotated = tuple((layer + 1) % every for layer in layers)
        return tuple(GLOBAL if one else None for one in rotated[: len(layers)])

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        slides = self.window is not None
        return self.layer_types or tuple(
            SLIDING if slides and rotation is None else FULL for rotation in self.rotations
        )


@final
class SmolLM3(Llama):
    config_type = SmolLM3Config
