"""GPT-NeoX (Black et al., 2022): rotary embedding on a part of each head; parallel or sequential
attention and MLP. Pythia, StableLM-alpha.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.models.config import AttributeMap, PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, LayerFactory, Parallel, PreNorm
from bass.models.rope import pair_order
from bass.models.sources import fused_rows, head_rows
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class GPTNeoXConfig(PartialRotaryConfig):
    """A config.json of `model_type: gpt_neox`."""

    model_type = "gpt_neox"
    architecture = "GPTNeoXForCausalLM"
    attribute_map: ClassVar[AttributeMap] = {
        "rms_norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
    }  # fmt: skip
    hidden_act: str = "gelu"
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 0.25
    use_parallel_residual: bool = True
    attention_bias: bool = True

    @property
    def qkv_rows(self) -> np.ndarray:
        heads = self.num_attention_heads
        order = pair_order(self.head_dim, self.rotary_dim, interleaved=False)
        return fused_rows(heads, 3 * self.hidden_size)[head_rows(order, heads, heads)]


@final
class GPTNeoX(RotaryDecoder):
    config_type = GPTNeoXConfig
    norm_type = LayerNorm
    names = RotaryDecoder.names | {
        "embed": "gpt_neox.embed_in.weight",
        "norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        "blocks": "gpt_neox.layers",
        "attention.qkv": "attention.query_key_value",
        "attention.out": "attention.dense",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    }
    prefix = "gpt_neox."

    def block(self, c: GPTNeoXConfig, make: LayerFactory, layer: int) -> Parallel | PreNorm:
        layers = Attention(make, c.attention_bias), MLP(make, bias=True)
        if c.use_parallel_residual:
            return Parallel(make, *layers, two_norms=True)
        return PreNorm(make, *layers)
