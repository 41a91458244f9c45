"""Granite 3 with experts (IBM, 2024): Granite with a mixture of experts in every layer."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from bass.models.config import FamilyConfig, check_experts
from bass.models.decoder import gated_block
from bass.models.granite import GraniteConfig, GraniteDecoder
from bass.models.layers import PreNorm, SparseMLP
from bass.models.sources import WeightSource, gated_sources, plain, without_mlps


@dataclass(frozen=True)
class GraniteMoeConfig(GraniteConfig):
    """A config.json of `model_type: granitemoe`."""

    model_type: ClassVar[str] = "granitemoe"
    architecture: ClassVar[str] = "GraniteMoeForCausalLM"
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_experts(self.num_local_experts, self.num_experts_per_tok)


@final
class GraniteMoe(GraniteDecoder):
    """A decoder of the Granite family with experts."""

    config_type: ClassVar[type[FamilyConfig]] = GraniteMoeConfig
    replayable: ClassVar[bool] = False  # on a CPU it reads which experts are chosen

    @classmethod
    def block(cls, c: Any, device: torch.device, dtype: torch.dtype) -> PreNorm:
        experts = c.num_local_experts, c.num_experts_per_tok
        mlp = SparseMLP(
            c.hidden_size, c.intermediate_size, c.hidden_act, *experts, True, device, dtype
        )
        return gated_block(c, device, dtype, c.attention_bias, c.attention_bias, mlp=mlp)

    @classmethod
    def sources(cls, config: GraniteMoeConfig) -> dict[str, WeightSource]:
        c, count, bias = config, config.num_local_experts, config.attention_bias
        found = without_mlps(
            gated_sources(c, qkv_bias=bias, out_bias=bias), range(c.num_hidden_layers)
        )
        for i in range(c.num_hidden_layers):
            ours, theirs = f"blocks.{i}.mlp", f"model.layers.{i}.block_sparse_moe"
            found |= plain(f"{ours}.router.weight", f"{theirs}.router.layer.weight", count)
            for name, stored, rows in (
                ("gate_up", "input_linear", 2 * c.intermediate_size),
                ("down", "output_linear", c.hidden_size),
            ):
                found[f"{ours}.experts.{name}"] = WeightSource(
                    (f"{theirs}.{stored}.weight",), (count * rows,), stacked=count
                )
        return found
