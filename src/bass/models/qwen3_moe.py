"""Qwen 3 with experts (Yang et al., 2025): Qwen 3 with a mixture of experts in most layers."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig, SlidingConfig, check_experts
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.layers import SparseMLP
from bass.models.sources import WeightSource, gated_sources, qk_norm_sources, with_experts
from bass.ops.norms import HeadNorm, RMSNorm


@dataclass(frozen=True)
class Qwen3MoeConfig(SlidingConfig, GatedConfig):
    """A config.json of `model_type: qwen3_moe`."""

    model_type: ClassVar[str] = "qwen3_moe"
    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"
    num_key_value_heads: int = 4
    max_position_embeddings: int = 32768
    attention_bias: bool = False
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts != 0:  # 0: no layer has experts
            check_experts(self.num_experts, self.num_experts_per_tok)

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Qwen3MoeConfig":
        """As `RotaryConfig.from_json`. Newer files name the number of experts as Mixtral does; the
        window counts only if it is switched on.
        """
        count = config.get("num_experts", config.get("num_local_experts"))
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        return super().from_json(config | {"num_experts": count, "sliding_window": window})

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"use_sliding_window": self.sliding_window is not None}

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """The layers with experts."""
        return tuple(
            i
            for i in range(self.num_hidden_layers)
            if self.num_experts
            and i not in self.mlp_only_layers
            and (i + 1) % max(self.decoder_sparse_step, 1) == 0
        )


@final
class Qwen3Moe(RotaryDecoder):
    """A decoder of the Qwen 3 family with experts."""

    config_type: ClassVar[type[FamilyConfig]] = Qwen3MoeConfig
    replayable: ClassVar[bool] = False  # on a CPU it reads which experts are chosen

    def __init__(
        self,
        config: Qwen3MoeConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads, bias = c.num_attention_heads + c.num_key_value_heads, c.attention_bias

        def experts() -> SparseMLP:
            return SparseMLP(
                c.hidden_size,
                c.moe_intermediate_size,
                c.hidden_act,
                c.num_experts,
                c.num_experts_per_tok,
                c.norm_topk_prob,
                device,
                dtype,
            )

        self.blocks = nn.ModuleList(
            gated_block(
                c,
                device,
                dtype,
                bias,
                bias,
                qk_norm=HeadNorm(heads, c.head_dim, c.rms_norm_eps, device, dtype),
                mlp=experts() if i in c.sparse_layers else None,
            )
            for i in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: Qwen3MoeConfig) -> dict[str, WeightSource]:
        c, bias = config, config.attention_bias
        dense = gated_sources(c, qkv_bias=bias, out_bias=bias) | qk_norm_sources(c)
        return with_experts(
            dense, c.sparse_layers, c.hidden_size, c.moe_intermediate_size, c.num_experts
        )
