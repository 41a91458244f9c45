"""Granite 3 with experts (IBM, 2024): Granite with a mixture of experts in every layer."""

from dataclasses import dataclass, replace
from typing import final

from bass.models.granite import Granite, GraniteConfig
from bass.models.layers import LayerFactory, SparseMLP
from bass.models.sources import WeightSource


@dataclass(frozen=True)
class GraniteMoeConfig(GraniteConfig):
    """A config.json of `model_type: granitemoe`."""

    model_type = "granitemoe"
    architecture = "GraniteMoeForCausalLM"
    num_local_experts: int = 8
    num_experts_per_tok: int = 2


@final
class GraniteMoe(Granite):
    config_type = GraniteMoeConfig
    names = Granite.names | {
        "mlp.router": "block_sparse_moe.router.layer",
        "mlp.experts.gate_up": "block_sparse_moe.input_linear.weight",
        "mlp.experts.down": "block_sparse_moe.output_linear.weight",
    }

    def mlp(self, c: GraniteMoeConfig, make: LayerFactory) -> SparseMLP:
        return SparseMLP(make, c.num_local_experts, c.num_experts_per_tok)

    @classmethod
    def sources(cls, config: GraniteMoeConfig) -> dict[str, WeightSource]:
        return {
            name: replace(s, stacked=config.num_local_experts) if ".experts." in name else s
            for name, s in super().sources(config).items()
        }
