"""HunYuan's dense models (Tencent, 2025): Llama whose queries and keys are normalised after the
rotary embedding.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, final

from bass.models.config import Assumed, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, Hidden, LayerFactory, PreNorm
from bass.ops.linear import project_qkv
from bass.records import Projection, Rotation


@dataclass(frozen=True)
class HunYuanConfig(RotaryConfig):
    """A config.json of `model_type: hunyuan_v1_dense`. `rope_alpha`: a factor of the base, of rope
    scaling `dynamic`; `rope_theta` then includes it.
    """

    model_type = "hunyuan_v1_dense"
    architecture = "HunYuanDenseV1ForCausalLM"
    assumes: ClassVar[Assumed] = {
        "use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)
    }  # fmt: skip
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    rope_alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        by = self.rope_alpha ** (self.head_dim / max(self.head_dim - 2, 1))
        object.__setattr__(self, "rope_theta", self.rope_theta * by)
        object.__setattr__(self, "rope_alpha", 1.0)

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if "dynamic" in rope.values() and rope.get("alpha"):
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
    config_type = HunYuanConfig
    names = RotaryDecoder.names | {
        "attention.qk_norm": ("self_attn.query_layernorm", "self_attn.key_layernorm")
    }  # fmt: skip

    def block(self, c: HunYuanConfig, make: LayerFactory, layer: int) -> PreNorm:
        attention = RotatedFirst(make, c.attention_bias, qk_norm=make.head_norm())
        return PreNorm(make, attention, GatedMLP(make))
