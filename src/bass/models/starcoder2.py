"""StarCoder 2 (Lozhkov et al., 2024): LayerNorm, an MLP without a gate, biases, grouped heads,
rotary positions and a window.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, AttributeMap, SlidingConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, LayerFactory, PreNorm
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class Starcoder2Config(SlidingConfig):
    """A config.json of `model_type: starcoder2`."""

    model_type = "starcoder2"
    architecture = "Starcoder2ForCausalLM"
    assumes: ClassVar[Assumed] = {"norm_type": ("layer_norm",), "mlp_type": ("default",)}
    attribute_map: ClassVar[AttributeMap] = {"rms_norm_eps": "norm_epsilon"}
    num_key_value_heads: int = 2
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = True
    hidden_act: str = "gelu_pytorch_tanh"
    rms_norm_eps: float = 1e-5
    use_bias: bool = True


@final
class Starcoder2(RotaryDecoder):
    config_type = Starcoder2Config
    norm_type = LayerNorm
    names = RotaryDecoder.names | {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}

    def block(self, c: Starcoder2Config, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, c.use_bias), MLP(make, c.use_bias))
