"""StableLM 2 and 3B (Bellagente et al., 2024): Llama with LayerNorm and rotary embedding on a part
of each head; parallel or sequential attention and MLP.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig
from bass.models.config_partial import PartialRotaryConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, Parallel, PreNorm
from bass.models.sources import LLAMA_NORMS, WeightSource, gated_sources, with_bias
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class StableLmConfig(PartialRotaryConfig):
    """A config.json of `model_type: stablelm`."""

    model_type: ClassVar[str] = "stablelm"
    architecture: ClassVar[str] = "StableLmForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("silu", *ACTIVATIONS),
        "qk_layernorm": (False,),
    }
    vocab_size: int = 50304
    hidden_size: int = 2560
    intermediate_size: int = 6912
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    max_position_embeddings: int = 4096
    partial_rotary_factor: float = 0.25
    hidden_act: str = "silu"
    layer_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    use_parallel_residual: bool = False


@final
class StableLm(RotaryDecoder):
    """A decoder of the StableLM family."""

    config_type: ClassVar[type[FamilyConfig]] = StableLmConfig

    def __init__(
        self,
        config: StableLmConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype, c.rotary_dim)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        norm = partial(LayerNorm, c.hidden_size, c.layer_norm_eps, device, dtype)
        block = Parallel if c.use_parallel_residual else PreNorm
        self.blocks = nn.ModuleList(
            block(
                norm(),
                Attention(c.hidden_size, heads, device, dtype, c.use_qkv_bias),
                None if c.use_parallel_residual else norm(),
                GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = norm()

    @classmethod
    def sources(cls, config: StableLmConfig) -> dict[str, WeightSource]:
        c, norms = config, dict(LLAMA_NORMS)
        if c.use_parallel_residual:
            del norms["mlp_norm"]
        found = gated_sources(c, norms, c.use_qkv_bias, qkv_rows=c.qkv_rows)
        found |= with_bias("norm", ["model.norm"], (c.hidden_size,))
        for i in range(c.num_hidden_layers):
            for ours, theirs in norms.items():
                names = f"blocks.{i}.{ours}", [f"model.layers.{i}.{theirs}"]
                found |= with_bias(*names, (c.hidden_size,))
        return found
