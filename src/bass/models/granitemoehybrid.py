"""Granite 4 without Mamba layers (IBM, 2025): Granite with one matrix for gate and up, and with
rotary embedding or none.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

from bass.errors import CheckpointError
from bass.models.config import FULL, GLOBAL, AttributeMap
from bass.models.granite import Granite, GraniteConfig


@dataclass(frozen=True)
class GraniteMoeHybridConfig(GraniteConfig):
    """A config.json of `model_type: granitemoehybrid`, all of whose layers have attention and none
    has experts.
    """

    model_type = "granitemoehybrid"
    architecture = "GraniteMoeHybridForCausalLM"
    attribute_map: ClassVar[AttributeMap] = {
        "intermediate_size": "shared_intermediate_size", "mlp_bias": None,
    }  # fmt: skip
    position_embedding_type: str | None = None  # another than "rope": no rotary embedding

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """As `RotaryConfig.from_json`. Raises `CheckpointError` for Mamba layers and experts."""
        kinds = {*(config.get("layer_types") or config.get("layers_block_type") or ("mamba",))}
        experts = config.get("num_local_experts", 8)
        if not kinds <= {"attention", FULL} or experts:
            raise CheckpointError(
                f"config.json has layers of {', '.join(sorted(kinds))} with {experts} experts: of "
                "granitemoehybrid `bass` reads models of attention layers without experts, as "
                "Granite 4.0 Micro; give one of those."
            )
        return super().from_json(config)

    def to_json(self) -> dict[str, Any]:
        kinds = ["attention"] * self.num_hidden_layers
        return super().to_json() | {"layer_types": kinds, "num_local_experts": 0}

    @cached_property
    def rotations(self) -> tuple[str | None, ...]:
        rotary = GLOBAL if self.position_embedding_type == "rope" else None
        return (rotary,) * self.num_hidden_layers


@final
class GraniteMoeHybrid(Granite):
    config_type = GraniteMoeHybridConfig
    names = Granite.names | {
        "mlp.gate_up": "shared_mlp.input_linear",
        "mlp.down": "shared_mlp.output_linear",
    }
