"""gpt-oss (OpenAI, 2025): a mixture of experts in every layer, biases, attention with sinks, and a
window in every other layer.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from einops import rearrange
from torch import nn

from bass.models.config import (
    FULL,
    SLIDING,
    FamilyConfig,
    GatedConfig,
    check_experts,
    check_kinds,
    layer_rules,
)
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.layers import SparseMLP
from bass.models.rope import RopeScaling
from bass.models.sources import WeightSource, gated_sources, plain, with_bias, without_mlps
from bass.ops.norms import RMSNorm
from bass.records import AttentionRule

YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
PUBLISHED = RopeScaling.from_json(YARN)


@dataclass(frozen=True)
class GptOssConfig(GatedConfig):
    """A config.json of `model_type: gpt_oss`."""

    model_type: ClassVar[str] = "gpt_oss"
    architecture: ClassVar[str] = "GptOssForCausalLM"
    # The others are what its code computes whatever the config says.
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("silu",), "swiglu_limit": (7.0, 7, None)
    }  # fmt: skip
    num_key_value_heads: int = 8
    head_dim: int = 64
    max_position_embeddings: int = 131072
    rope_theta: float = 150000.0
    rope_scaling: RopeScaling | None = PUBLISHED
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int | None = 128
    layer_types: tuple[str, ...] | None = None
    num_local_experts: int = 128
    num_experts_per_tok: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_experts(self.num_local_experts, self.num_experts_per_tok)
        check_kinds(self.kinds, self.num_hidden_layers, self.sliding_window)

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "GptOssConfig":
        """As `RotaryConfig.from_json`; without rope parameters, those of the published models."""
        given = config.get("rope_scaling") or config.get("rope_parameters")
        return super().from_json(config if given else config | {"rope_scaling": YARN})

    def to_json(self) -> dict[str, Any]:
        """As `RotaryConfig.to_json`; without rope parameters, `transformers` has the published
        ones.
        """
        none = {"rope_type": "default", "rope_theta": self.rope_theta}
        return super().to_json() | ({} if self.rope_scaling else {"rope_parameters": none})

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        return self.layer_types or tuple(
            FULL if i % 2 else SLIDING for i in range(self.num_hidden_layers)
        )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        rule = AttentionRule(self.head_dim**-0.5, self.sliding_window, sinks=True)
        return layer_rules(self.kinds, rule)


@final
class GptOss(RotaryDecoder):
    """A decoder of the gpt-oss family."""

    config_type: ClassVar[type[FamilyConfig]] = GptOssConfig
    replayable: ClassVar[bool] = False  # on a CPU it reads which experts are chosen

    def __init__(
        self,
        config: GptOssConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        bias, experts = c.attention_bias, (c.num_local_experts, c.num_experts_per_tok)

        def mlp() -> SparseMLP:
            return SparseMLP(
                c.hidden_size, c.intermediate_size, "clamped_silu", *experts, True, device, dtype,
                bias=True,
            )  # fmt: skip

        self.blocks = nn.ModuleList(
            gated_block(c, device, dtype, bias, bias, mlp=mlp(), sinks=True)
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: GptOssConfig) -> dict[str, WeightSource]:
        c, bias, count = config, config.attention_bias, config.num_local_experts
        layers = range(c.num_hidden_layers)
        found = without_mlps(gated_sources(c, qkv_bias=bias, out_bias=bias), layers)
        # an expert's gates and ups are stored in turn
        rows = np.arange(count * 2 * c.intermediate_size)
        order = rearrange(rows, "(e i part) -> (e part i)", e=count, part=2)
        for i in layers:
            ours, theirs = f"blocks.{i}.mlp", f"model.layers.{i}.mlp"
            attention = f"model.layers.{i}.self_attn"
            found |= plain(
                f"blocks.{i}.attention.sinks", f"{attention}.sinks", c.num_attention_heads
            )
            found |= with_bias(f"{ours}.router", [f"{theirs}.router"], (count,))
            for name, stored, size, kept in (
                ("gate_up", "gate_up_proj", len(rows), order),
                ("down", "down_proj", count * c.hidden_size, None),
            ):
                whole = WeightSource((f"{theirs}.experts.{stored}",), (size,), kept, True, count)
                found[f"{ours}.experts.{name}"] = whole
                found[f"{ours}.experts.{name}_bias"] = replace(
                    whole, tensors=(f"{theirs}.experts.{stored}_bias",), transposed=False
                )
        return found
