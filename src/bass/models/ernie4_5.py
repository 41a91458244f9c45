"""ERNIE 4.5, its dense models (Baidu, 2025): Llama with rotary embedding in adjacent pairs."""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, RotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm


@dataclass(frozen=True)
class Ernie45Config(RotaryConfig):
    """A config.json of `model_type: ernie4_5`."""

    model_type = "ernie4_5"
    architecture = "Ernie4_5ForCausalLM"
    assumes: ClassVar[Assumed] = {"compression_ratio": (1.0, None)}
    interleaved = True
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    use_bias: bool = False


@final
class Ernie45(RotaryDecoder):
    config_type = Ernie45Config

    def block(self, c: Ernie45Config, make: LayerFactory, layer: int) -> PreNorm:
        return PreNorm(make, Attention(make, c.use_bias), GatedMLP(make, c.use_bias))
