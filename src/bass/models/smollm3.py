"""SmolLM 3 (Bakouch et al., 2025): Llama without rotary embedding in every fourth layer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.models.config import FULL, SLIDING, FamilyConfig, WindowedConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.sources import WeightSource, gated_sources
from bass.ops.norms import RMSNorm
from bass.records import Rotation


@dataclass(frozen=True)
class SmolLM3Config(WindowedConfig):
    """A config.json of `model_type: smollm3`.

    `no_rope_layers`: for each layer, 1 if it has rotary embedding, and 0 if not. By default every
    `no_rope_layer_interval`-th layer has none. Those without have the windows, if there are any.
    """

    model_type: ClassVar[str] = "smollm3"
    architecture: ClassVar[str] = "SmolLM3ForCausalLM"
    vocab_size: int = 128256
    hidden_size: int = 2048
    intermediate_size: int = 11008
    num_hidden_layers: int = 36
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    rope_theta: float = 2000000.0
    tie_word_embeddings: bool = True
    sliding_window: int | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.no_rope_layer_interval == 0 or len(self.rotated) != self.num_hidden_layers:
            raise CheckpointError(
                f"config.json has {len(self.no_rope_layers or ())} `no_rope_layers` and "
                f"`no_rope_layer_interval={self.no_rope_layer_interval}` for "
                f"{self.num_hidden_layers} layers: download the checkpoint again."
            )
        super().__post_init__()

    def to_json(self) -> dict[str, Any]:
        # the default of `transformers` may lie beyond the vocabulary
        return super().to_json() | {"pad_token_id": None}

    @property
    def rotated(self) -> tuple[bool, ...]:
        """Whether each layer has rotary embedding."""
        if self.no_rope_layers is not None:
            return tuple(map(bool, self.no_rope_layers))
        return tuple(
            (i + 1) % self.no_rope_layer_interval > 0 for i in range(self.num_hidden_layers)
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        slides = self.window is not None
        return self.layer_types or tuple(
            SLIDING if slides and not rotated else FULL for rotated in self.rotated
        )


@final
class SmolLM3(RotaryDecoder):
    """A decoder of the SmolLM 3 family."""

    config_type: ClassVar[type[FamilyConfig]] = SmolLM3Config

    def __init__(
        self,
        config: SmolLM3Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        bias = c.attention_bias
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype, bias, bias, c.mlp_bias)
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        rotation = self.rotary(positions)
        return [rotation if rotated else None for rotated in self.config.rotated]

    @classmethod
    def sources(cls, config: SmolLM3Config) -> dict[str, WeightSource]:
        bias = config.attention_bias
        return gated_sources(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)
