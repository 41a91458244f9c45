"""StableLM 2 and 3B (Bellagente et al., 2024): Llama with LayerNorm and rotary embedding on a part
of each head; parallel or sequential attention and MLP.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed, AttributeMap, PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, Parallel, PreNorm
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class StableLmConfig(PartialRotaryConfig):
    """A config.json of `model_type: stablelm`."""

    model_type = "stablelm"
    architecture = "StableLmForCausalLM"
    assumes: ClassVar[Assumed] = {"qk_layernorm": (False,)}
    attribute_map: ClassVar[AttributeMap] = {"rms_norm_eps": "layer_norm_eps"}
    num_key_value_heads: int = 32
    max_position_embeddings: int = 4096
    partial_rotary_factor: float = 0.25
    rms_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    use_parallel_residual: bool = False


@final
class StableLm(RotaryDecoder):
    config_type = StableLmConfig
    norm_type = LayerNorm

    def block(self, c: StableLmConfig, make: LayerFactory, layer: int) -> Parallel | PreNorm:
        kind = Parallel if c.use_parallel_residual else PreNorm
        return kind(make, Attention(make, c.use_qkv_bias, out_bias=False), GatedMLP(make))
