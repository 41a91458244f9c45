"""OLMo 3 (Ai2, 2025): OLMo 2 with windows in three of four layers, which keep their rotary
embedding where that of the others is scaled.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Int
from torch import Tensor

from bass.errors import CheckpointError
from bass.models.config import FULL, SLIDING, Base, LayerTypesConfig, rope_by_kind
from bass.models.layers import LayerFactory
from bass.models.olmo2 import Olmo2, Olmo2Config
from bass.records import Rotation


@dataclass(frozen=True)
class Olmo3Config(Olmo2Config, LayerTypesConfig):
    """A config.json of `model_type: olmo3`.

    `rope_scaling` applies to the layers without a window; `rope_theta` to all. Newer files have
    both in `rope_parameters`, by the kind of layer.
    """

    model_type = "olmo3"
    architecture = "Olmo3ForCausalLM"
    rope_theta: Base = 500000.0
    sliding_window: int | None = 4096

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
    def period(self) -> int:
        return 4


@final
class Olmo3(Olmo2):
    """A decoder of the OLMo 3 family."""

    config_type = Olmo3Config

    def setup(self, c: Olmo3Config, make: LayerFactory) -> None:
        super().setup(c, make)
        self.local_rotary = make.rotary(c.rope_theta, c.context)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        by_kind = {FULL: self.rotary(positions), SLIDING: self.local_rotary(positions)}
        return [by_kind[kind] for kind in self.config.kinds]
