"""ERNIE 4.5, its dense models (Baidu, 2025): Llama with rotary embedding in adjacent pairs."""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, Base, GatedConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Size
from bass.models.layers import LayerFactory, PreNorm


@dataclass(frozen=True)
class Ernie45Config(GatedConfig):
    """A config.json of `model_type: ernie4_5`."""

    model_type = "ernie4_5"
    architecture = "Ernie4_5ForCausalLM"
    assumes: ClassVar[Assumed] = {"compression_ratio": (1.0, None)}
    interleaved = True
    vocab_size: Size = 103424
    hidden_size: Size = 1024
    intermediate_size: int = 3072
    num_hidden_layers: Size = 18
    num_attention_heads: Size = 16
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: Size = 131072
    rope_theta: Base = 500000.0
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    use_bias: bool = False


@final
class Ernie45(RotaryDecoder):
    """A decoder of the ERNIE 4.5 family."""

    config_type = Ernie45Config

    def block(self, c: Ernie45Config, make: LayerFactory, layer: int) -> PreNorm:
        attention = make.attention(c.use_bias, c.use_bias)
        return PreNorm(make.norm(), attention, make.norm(), make.gated_mlp(c.use_bias))
