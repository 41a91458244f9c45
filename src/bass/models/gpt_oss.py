"""gpt-oss (OpenAI, 2025): a mixture of experts in every layer, biases, attention with sinks, and a
window in every other layer.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
from einops import rearrange

from bass.models.config import Assumed, LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, LayerFactory, PreNorm, SparseMLP
from bass.models.sources import WeightSource
from bass.records import AttentionRule

YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


@dataclass(frozen=True)
class GptOssConfig(LayerTypesConfig):
    """A config.json of `model_type: gpt_oss`."""

    model_type = "gpt_oss"
    architecture = "GptOssForCausalLM"
    default_rope: ClassVar[dict[str, Any]] = YARN
    # The others are what its code computes whatever the config says.
    assumes: ClassVar[Assumed] = {"hidden_act": ("silu",), "swiglu_limit": (7.0, 7, None)}
    num_key_value_heads: int = 8
    head_dim: int = 64
    max_position_embeddings: int = 131072
    rope_theta: float = 150000.0
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int | None = 128
    num_local_experts: int = 128
    num_experts_per_tok: int = 4

    def to_json(self) -> dict[str, Any]:
        """As `RotaryConfig.to_json`; without rope parameters, `transformers` has the published
        ones.
        """
        none = {"rope_type": "default", "rope_theta": self.rope_theta}
        return super().to_json() | ({} if self.rope_scaling else {"rope_parameters": none})

    @property
    def rule(self) -> AttentionRule:
        return replace(super().rule, sinks=True)


@final
class GptOss(RotaryDecoder):
    config_type = GptOssConfig
    names = RotaryDecoder.names | {
        "attention.sinks": "self_attn.sinks",
        "mlp.router": "mlp.router",
        "mlp.experts.gate_up": "mlp.experts.gate_up_proj",
        "mlp.experts.gate_up_bias": "mlp.experts.gate_up_proj_bias",
        "mlp.experts.down": "mlp.experts.down_proj",
        "mlp.experts.down_bias": "mlp.experts.down_proj_bias",
    }

    def block(self, c: GptOssConfig, make: LayerFactory, layer: int) -> PreNorm:
        of = c.num_local_experts, c.num_experts_per_tok
        mlp = SparseMLP(make, *of, act="clamped_silu", bias=True)
        return PreNorm(make, Attention(make, c.attention_bias, sinks=True), mlp)

    @classmethod
    def sources(cls, config: GptOssConfig) -> dict[str, WeightSource]:
        found, count = super().sources(config), config.num_local_experts
        # an expert's gates and ups are stored in turn
        stored = np.arange(count * 2 * config.intermediate_size)
        order = rearrange(stored, "(e i part) -> (e part i)", e=count, part=2)
        for name, source in found.items():
            if ".experts." in name:
                rows, matrix = order if ".gate_up" in name else None, not name.endswith("_bias")
                found[name] = replace(source, rows=rows, transposed=matrix, stacked=count)
        return found
