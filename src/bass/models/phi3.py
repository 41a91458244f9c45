"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024): Llama with fused projections and, in some sizes,
rotary embedding on a part of each head.

Checkpoints with a context extended by `longrope` support the original context, with the short
factors.
"""

from dataclasses import dataclass
from typing import Any, Self, final

from bass.errors import CheckpointError
from bass.models.config import PartialRotaryConfig, SlidingConfig
from bass.models.decoder import RotaryDecoder

LONGROPE = ("su", "yarn", "longrope")  # its names; older files have the first two


@dataclass(frozen=True)
class Phi3Config(PartialRotaryConfig, SlidingConfig):
    """A config.json of `model_type: phi3`."""

    model_type = "phi3"
    architecture = "Phi3ForCausalLM"
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 1.0

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """Read config.json. The original context is a field next to the others."""
        name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        rope = config.get(name) or {}
        kind = rope.get("rope_type", rope.get("type"))
        if kind in LONGROPE:
            original = {"original_max_position_embeddings": cls.original_max_position_embeddings}
            config = original | config | {name: rope | {"rope_type": "longrope"}}
        elif kind not in (None, "default"):
            raise CheckpointError(f"The checkpoint has rope scaling `{kind}`; phi3 has longrope.")
        return super().from_json(config)


@final
class Phi3(RotaryDecoder):
    config_type = Phi3Config
    names = RotaryDecoder.names | {
        "attention.qkv": "self_attn.qkv_proj",
        "mlp.gate_up": "mlp.gate_up_proj",
    }
