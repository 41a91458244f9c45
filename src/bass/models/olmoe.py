"""OLMoE (Muennighoff et al., 2025): a mixture of experts in every layer, and norms of queries and
keys over all heads.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, GatedConfig, check_experts
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.layers import SparseMLP
from bass.models.sources import (
    WeightSource,
    gated_sources,
    projection_norm_sources,
    with_experts,
)
from bass.ops.norms import ProjectionNorm, RMSNorm


@dataclass(frozen=True)
class OlmoeConfig(GatedConfig):
    """A config.json of `model_type: olmoe`."""

    model_type: ClassVar[str] = "olmoe"
    architecture: ClassVar[str] = "OlmoeForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = GatedConfig.assumes | {"clip_qkv": (None,)}
    vocab_size: int = 50304
    hidden_size: int = 2048
    intermediate_size: int = 2048
    num_hidden_layers: int = 16
    num_attention_heads: int = 16
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    num_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_experts(self.num_experts, self.num_experts_per_tok)


@final
class Olmoe(RotaryDecoder):
    """A decoder of the OLMoE family."""

    config_type: ClassVar[type[FamilyConfig]] = OlmoeConfig
    replayable: ClassVar[bool] = False  # on a CPU it reads which experts are chosen

    def __init__(
        self,
        config: OlmoeConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        bias, of = c.attention_bias, (c.num_experts, c.num_experts_per_tok, c.norm_topk_prob)
        self.blocks = nn.ModuleList(
            gated_block(
                c,
                device,
                dtype,
                bias,
                bias,
                qk_norm=ProjectionNorm(heads, c.rms_norm_eps, device, dtype),
                mlp=SparseMLP(c.hidden_size, c.intermediate_size, c.hidden_act, *of, device, dtype),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: OlmoeConfig) -> dict[str, WeightSource]:
        c, bias = config, config.attention_bias
        dense = gated_sources(c, qkv_bias=bias, out_bias=bias) | projection_norm_sources(c)
        layers = range(c.num_hidden_layers)
        return with_experts(dense, layers, c.hidden_size, c.intermediate_size, c.num_experts)
