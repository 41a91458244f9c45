"""HunYuan's dense models (Tencent, 2025): Llama whose queries and keys are normalised after the
rotary embedding.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import Config, FamilyConfig, GatedConfig, check_theta
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, Hidden, PreNorm
from bass.models.sources import WeightSource, gated_sources, qk_norm_sources
from bass.ops.linear import project_qkv
from bass.ops.norms import HeadNorm, RMSNorm
from bass.records import Projection, Rotation


@dataclass(frozen=True)
class HunYuanConfig(GatedConfig):
    """A config.json of `model_type: hunyuan_v1_dense`. `rope_alpha`: a factor of the base, of rope
    scaling `dynamic`; `rope_theta` then includes it.
    """

    model_type: ClassVar[str] = "hunyuan_v1_dense"
    architecture: ClassVar[str] = "HunYuanDenseV1ForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = GatedConfig.assumes | {
        "use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)
    }  # fmt: skip
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    rope_alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        by = max(self.rope_alpha, 0) ** (self.head_dim / max(self.head_dim - 2, 1))
        object.__setattr__(self, "rope_theta", self.rope_theta * by)
        object.__setattr__(self, "rope_alpha", 1.0)
        check_theta(self.rope_theta)

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        rope = config.get("rope_scaling") or config.get("rope_parameters")
        if isinstance(rope, dict) and "dynamic" in rope.values() and rope.get("alpha"):
            config = config | {"rope_alpha": rope["alpha"], "rope_scaling": None}
            config |= {"rope_parameters": {k: v for k, v in rope.items() if k == "rope_theta"}}
        return super().from_json(config)


class RotatedFirst(Attention):
    """Attention with its norm of queries and keys after the rotary embedding."""

    def project(self, x: Hidden, rotation: Rotation | None) -> Projection:
        whole = project_qkv(x, self.qkv, self.heads, rotation=rotation)
        return replace(Projection.of(*whole.rotated()), qk_norm=self.qk_norm)


@final
class HunYuan(RotaryDecoder):
    """A decoder of the HunYuan family."""

    config_type: ClassVar[type[FamilyConfig]] = HunYuanConfig

    def __init__(
        self,
        config: HunYuanConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, at, bias = config, (torch.device(device), dtype), config.attention_bias
        super().__init__(c, *at)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        norm = partial(RMSNorm, c.hidden_size, c.rms_norm_eps, *at)
        of_heads = partial(HeadNorm, heads[0] + heads[1], c.head_dim, c.rms_norm_eps, *at)
        mlp = partial(GatedMLP, c.hidden_size, c.intermediate_size, c.hidden_act, *at)
        attention = partial(RotatedFirst, c.hidden_size, heads, *at, bias, bias)
        self.blocks = nn.ModuleList(
            PreNorm(norm(), attention(of_heads()), norm(), mlp())
            for _ in range(c.num_hidden_layers)
        )
        self.norm = norm()

    @classmethod
    def sources(cls, config: HunYuanConfig) -> dict[str, WeightSource]:
        found = gated_sources(config, qkv_bias=(b := config.attention_bias), out_bias=b)
        return found | qk_norm_sources(config, ("query_layernorm", "key_layernorm"))
