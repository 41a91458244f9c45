"""Mixtral (Jiang et al., 2024): Mistral with a mixture of experts in every layer."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig, SlidingConfig, check_experts
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.layers import SparseMLP
from bass.models.sources import WeightSource, gated_sources, with_experts
from bass.ops.norms import RMSNorm


@dataclass(frozen=True)
class MixtralConfig(SlidingConfig, GatedConfig):
    """A config.json of `model_type: mixtral`."""

    model_type: ClassVar[str] = "mixtral"
    architecture: ClassVar[str] = "MixtralForCausalLM"
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-5
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_experts(self.num_local_experts, self.num_experts_per_tok)


@final
class Mixtral(RotaryDecoder):
    """A decoder of the Mixtral family."""

    config_type: ClassVar[type[FamilyConfig]] = MixtralConfig
    replayable: ClassVar[bool] = False  # on a CPU it reads which experts are chosen

    def __init__(
        self,
        config: MixtralConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        experts = c.num_local_experts, c.num_experts_per_tok
        self.blocks = nn.ModuleList(
            gated_block(
                c,
                device,
                dtype,
                mlp=SparseMLP(
                    c.hidden_size, c.intermediate_size, c.hidden_act, *experts, True, device, dtype
                ),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: MixtralConfig) -> dict[str, WeightSource]:
        c = config
        return with_experts(
            gated_sources(c),
            range(c.num_hidden_layers),
            c.hidden_size,
            c.intermediate_size,
            c.num_local_experts,
            "block_sparse_moe",
            ("w1", "w3", "w2"),
        )
