"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024): Llama with fused projections and, in some sizes,
rotary embedding on a part of each head.

Checkpoints with a context extended by `longrope` support the original context, with the short
factors.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.errors import CheckpointError
from bass.models.config import FamilyConfig, GatedConfig, SlidingConfig
from bass.models.config_partial import PartialRotaryConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.sources import WeightSource, fused_gate_up, gated_sources, with_bias
from bass.ops.norms import RMSNorm


@dataclass(frozen=True)
class Phi3Config(PartialRotaryConfig, SlidingConfig, GatedConfig):
    """A config.json of `model_type: phi3`."""

    model_type: ClassVar[str] = "phi3"
    architecture: ClassVar[str] = "Phi3ForCausalLM"
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope_scaling is not None and self.rope_scaling.kind != "longrope":
            raise CheckpointError(
                f"The checkpoint has rope scaling `{self.rope_scaling.kind}`; phi3 supports: "
                "longrope."
            )

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Phi3Config":
        """Read config.json. The original context is a field next to the others; older files say
        `su` or `yarn` for `longrope`.
        """
        name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        rope = config.get(name)
        if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) in (
            "su",
            "yarn",
            "longrope",
        ):
            original = {"original_max_position_embeddings": cls.original_max_position_embeddings}
            config = original | config | {name: rope | {"rope_type": "longrope"}}
        return super().from_json(config)

    def to_json(self) -> dict[str, Any]:
        # the default of `transformers` may lie beyond the vocabulary
        return super().to_json() | {"pad_token_id": None}


@final
class Phi3(RotaryDecoder):
    """A decoder of the Phi-3 family."""

    config_type: ClassVar[type[FamilyConfig]] = Phi3Config

    def __init__(
        self,
        config: Phi3Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype, c.rotary_dim)
        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype) for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: Phi3Config) -> dict[str, WeightSource]:
        c, found = config, gated_sources(config)
        qkv = (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
        rows = None if c.rotary_dim == c.head_dim else c.qkv_rows
        for i in range(c.num_hidden_layers):
            ours, theirs = f"blocks.{i}", f"model.layers.{i}"
            found |= with_bias(
                f"{ours}.attention.qkv", [f"{theirs}.self_attn.qkv_proj"], (qkv,), rows, bias=False
            )
        return found | fused_gate_up(c)
