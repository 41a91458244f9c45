"""EXAONE 4 (LG AI Research, 2025): norms after attention and MLP, normalised queries and keys; in
the large size windows, and every fourth layer with neither a window nor rotary embedding.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bass.models.config import FULL, SLIDING, FamilyConfig, GatedConfig, check_kinds, layer_rules
from bass.models.decoder import RotaryDecoder, reordered_block
from bass.models.sources import REORDERED_NORMS, WeightSource, gated_sources, qk_norm_sources
from bass.ops.norms import HeadNorm, RMSNorm
from bass.records import AttentionRule, Rotation


@dataclass(frozen=True)
class Exaone4Config(GatedConfig):
    """A config.json of `model_type: exaone4`. Models without any window rotate in all layers."""

    model_type: ClassVar[str] = "exaone4"
    architecture: ClassVar[str] = "Exaone4ForCausalLM"
    vocab_size: int = 102400
    hidden_size: int = 4096
    intermediate_size: int = 16384
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 4096
    sliding_window_pattern: int | str | None = 4  # "LLLG": 4
    layer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.kinds, self.num_hidden_layers, self.sliding_window)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        pattern = self.sliding_window_pattern
        period = (
            1
            if self.sliding_window is None
            else len(pattern)
            if isinstance(pattern, str)
            else pattern
        )
        return self.layer_types or tuple(
            SLIDING if (i + 1) % (period or 1) else FULL for i in range(self.num_hidden_layers)
        )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return layer_rules(self.kinds, AttentionRule(self.head_dim**-0.5, self.sliding_window))


@final
class Exaone4(RotaryDecoder):
    """A decoder of the EXAONE 4 family."""

    config_type: ClassVar[type[FamilyConfig]] = Exaone4Config

    def __init__(
        self,
        config: Exaone4Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads = c.num_attention_heads + c.num_key_value_heads
        self.blocks = nn.ModuleList(
            reordered_block(
                c, device, dtype, HeadNorm(heads, c.head_dim, c.rms_norm_eps, device, dtype)
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        rotation, everywhere = self.rotary(positions), self.config.sliding_window is None
        return [rotation if everywhere or kind == SLIDING else None for kind in self.config.kinds]

    @classmethod
    def sources(cls, config: Exaone4Config) -> dict[str, WeightSource]:
        return gated_sources(config, REORDERED_NORMS) | qk_norm_sources(config)
