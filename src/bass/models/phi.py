"""Phi-1, Phi-1.5 and Phi-2 (Li et al., 2023): GPT-J's parallel block with biases everywhere, and
rotary embedding on a part of each head.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, AttributeMap, PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, LayerFactory, Parallel
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class PhiConfig(PartialRotaryConfig):
    """A config.json of `model_type: phi`."""

    model_type = "phi"
    architecture = "PhiForCausalLM"
    assumes: ClassVar[Assumed] = {"qk_layernorm": (False,)}
    attribute_map: ClassVar[AttributeMap] = {"rms_norm_eps": "layer_norm_eps"}
    hidden_act: str = "gelu_new"
    rms_norm_eps: float = 1e-5


@final
class Phi(RotaryDecoder):
    config_type = PhiConfig
    norm_type = LayerNorm
    has_head_bias = True
    names = RotaryDecoder.names | {
        "norm": "model.final_layernorm",
        "attention.out": "self_attn.dense",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    }

    def block(self, c: PhiConfig, make: LayerFactory, layer: int) -> Parallel:
        return Parallel(make, Attention(make, bias=True), MLP(make, bias=True))
