"""OLMo 3 (Ai2, 2025): OLMo 2 with windows in three of four layers, which keep their rotary
embedding where that of the others is scaled.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.models.config import (
    FULL,
    SLIDING,
    FamilyConfig,
    check_kinds,
    layer_rules,
    rope_by_kind,
)
from bass.models.decoder import RotaryDecoder, reordered_block
from bass.models.olmo2 import Olmo2Config
from bass.models.rope import Rotary
from bass.models.sources import (
    REORDERED_NORMS,
    WeightSource,
    gated_sources,
    projection_norm_sources,
)
from bass.ops.norms import ProjectionNorm, RMSNorm
from bass.records import AttentionRule, Rotation


@dataclass(frozen=True)
class Olmo3Config(Olmo2Config):
    """A config.json of `model_type: olmo3`.

    `rope_scaling` applies to the layers without a window; `rope_theta` to all. Newer files have
    both in `rope_parameters`, by the kind of layer.
    """

    model_type: ClassVar[str] = "olmo3"
    architecture: ClassVar[str] = "Olmo3ForCausalLM"
    rope_theta: float = 500000.0
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.kinds, self.num_hidden_layers, self.sliding_window)

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Olmo3Config":
        """As above."""
        full, sliding = rope_by_kind(config, cls.model_type)
        thetas = {rope["rope_theta"] for rope in (full, sliding) if "rope_theta" in rope}
        if len(thetas) > 1:
            raise CheckpointError(
                f"config.json has the rope bases {full['rope_theta']} and "
                f"{sliding['rope_theta']} of its two kinds of layers: `bass` supports one for both."
            )
        return super().from_json(config | {"rope_parameters": None, "rope_scaling": full})

    def to_json(self) -> dict[str, Any]:
        sliding = {"rope_type": "default", "rope_theta": self.rope_theta}
        own = super().to_json()
        full = sliding | (own.pop("rope_scaling") or {})
        return own | {"rope_parameters": {FULL: full, SLIDING: sliding}}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        return self.layer_types or tuple(
            SLIDING if (i + 1) % 4 else FULL for i in range(self.num_hidden_layers)
        )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return layer_rules(self.kinds, AttentionRule(self.head_dim**-0.5, self.sliding_window))


@final
class Olmo3(RotaryDecoder):
    """A decoder of the OLMo 3 family."""

    config_type: ClassVar[type[FamilyConfig]] = Olmo3Config

    def __init__(
        self,
        config: Olmo3Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        self.blocks = nn.ModuleList(
            reordered_block(
                c,
                device,
                dtype,
                ProjectionNorm(heads, c.rms_norm_eps, device, dtype),
                c.attention_bias,
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)
        self.local_rotary = Rotary(c.head_dim, c.rope_theta, c.context, None, device, dtype)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        by_kind = {FULL: self.rotary(positions), SLIDING: self.local_rotary(positions)}
        return [by_kind[kind] for kind in self.config.kinds]

    @classmethod
    def sources(cls, config: Olmo3Config) -> dict[str, WeightSource]:
        bias = config.attention_bias
        found = gated_sources(config, REORDERED_NORMS, qkv_bias=bias, out_bias=bias)
        return found | projection_norm_sources(config)
