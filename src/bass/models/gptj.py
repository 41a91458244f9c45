"""GPT-J (Wang and Komatsuzaki, 2021): rotary embedding on a part of each head, in adjacent pairs;
parallel attention and MLP behind one LayerNorm, a head with a bias.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from bass.models.config import Assumed, AttributeMap, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.gpt2 import GPT2Config
from bass.models.layers import MLP, Attention, LayerFactory, Parallel
from bass.models.sources import GPT
from bass.ops.norms import LayerNorm


@dataclass(frozen=True, kw_only=True)
class GPTJConfig(RotaryConfig):
    """A config.json of `model_type: gptj`. `rotated`: dimensions of each head."""

    model_type = "gptj"
    architecture = "GPTJForCausalLM"
    assumes: ClassVar[Assumed] = GPT2Config.assumes
    attribute_map: ClassVar[AttributeMap] = GPT2Config.attribute_map | {
        "rotated": "rotary_dim", "rope_theta": None, "rope_scaling": None
    }  # fmt: skip
    interleaved = True
    intermediate_size: int = 0  # 0: 4 * hidden_size
    hidden_act: str = "gelu_new"
    rms_norm_eps: float = 1e-5
    rotated: int = 64

    @property
    def rotary_dim(self) -> int:
        return self.rotated


class GPTJ(RotaryDecoder):
    config_type = GPTJConfig
    norm_type = LayerNorm
    has_head_bias = True
    names = GPT | {
        "attention.qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        "attention.out": "attn.out_proj",
        "mlp.up": "mlp.fc_in",
        "mlp.down": "mlp.fc_out",
    }
    prefix = "transformer."

    def block(self, c: Any, make: LayerFactory, layer: int) -> Parallel:
        return Parallel(make, Attention(make), MLP(make, bias=True))
