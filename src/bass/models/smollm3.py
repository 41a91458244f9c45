"""SmolLM 3 (Bakouch et al., 2025): Llama without rotary embedding in every fourth layer."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, final

from jaxtyping import Int
from torch import Tensor

from bass.errors import CheckpointError
from bass.models.config import FULL, SLIDING, Base, WindowedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Size
from bass.models.layers import LayerFactory, PreNorm
from bass.records import Rotation


@dataclass(frozen=True)
class SmolLM3Config(WindowedConfig):
    """A config.json of `model_type: smollm3`.

    `no_rope_layers`: for each layer, 1 if it has rotary embedding, and 0 if not. By default every
    `no_rope_layer_interval`-th layer has none. Those without have the windows, if there are any.
    """

    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    # the default of `transformers` may lie beyond the vocabulary
    writes: ClassVar[dict[str, Any]] = {"pad_token_id": None}
    vocab_size: Size = 128256
    hidden_size: Size = 2048
    intermediate_size: int = 11008
    num_hidden_layers: Size = 36
    num_attention_heads: Size = 16
    num_key_value_heads: int = 4
    rope_theta: Base = 2000000.0
    tie_word_embeddings: bool = True
    sliding_window: int | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Size = 4
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if len(self.rotated) != self.num_hidden_layers:
            raise CheckpointError(
                f"config.json has {len(self.rotated)} `no_rope_layers` for "
                f"{self.num_hidden_layers} layers: download the checkpoint again."
            )
        super().__post_init__()

    @cached_property
    def rotated(self) -> tuple[bool, ...]:
        """Whether each layer has rotary embedding."""
        if self.no_rope_layers is not None:
            return tuple(map(bool, self.no_rope_layers))
        return tuple(
            (i + 1) % self.no_rope_layer_interval > 0 for i in range(self.num_hidden_layers)
        )

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        slides = self.window is not None
        return self.layer_types or tuple(
            SLIDING if slides and not rotated else FULL for rotated in self.rotated
        )


@final
class SmolLM3(RotaryDecoder):
    """A decoder of the SmolLM 3 family."""

    config_type = SmolLM3Config

    def block(self, c: SmolLM3Config, make: LayerFactory, layer: int) -> PreNorm:
        attention = make.attention(c.attention_bias, c.attention_bias)
        return PreNorm(make.norm(), attention, make.norm(), make.gated_mlp(c.mlp_bias))

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        rotation = self.rotary(positions)
        return [rotation if rotated else None for rotated in self.config.rotated]
