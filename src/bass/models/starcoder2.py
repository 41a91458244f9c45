"""StarCoder 2 (Lozhkov et al., 2024): LayerNorm, an MLP without a gate, biases, grouped heads,
rotary positions and a window.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import FamilyConfig, SlidingConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, PreNorm
from bass.models.sources import LLAMA_NORMS, WeightSource, ungated_sources
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class Starcoder2Config(SlidingConfig):
    """A config.json of `model_type: starcoder2`."""

    model_type: ClassVar[str] = "starcoder2"
    architecture: ClassVar[str] = "Starcoder2ForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("gelu_pytorch_tanh", *ACTIVATIONS),
        "norm_type": ("layer_norm",),
        "mlp_type": ("default",),
    }
    num_key_value_heads: int = 2
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = True
    hidden_act: str = "gelu_pytorch_tanh"
    norm_epsilon: float = 1e-5
    use_bias: bool = True


@final
class Starcoder2(RotaryDecoder):
    """A decoder of the StarCoder 2 family."""

    config_type: ClassVar[type[FamilyConfig]] = Starcoder2Config

    def __init__(
        self,
        config: Starcoder2Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
        self.blocks = nn.ModuleList(
            PreNorm(
                LayerNorm(c.hidden_size, c.norm_epsilon, device, dtype),
                Attention(c.hidden_size, heads, device, dtype, c.use_bias, c.use_bias),
                LayerNorm(c.hidden_size, c.norm_epsilon, device, dtype),
                MLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype, c.use_bias),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = LayerNorm(c.hidden_size, c.norm_epsilon, device, dtype)

    @classmethod
    def sources(cls, config: Starcoder2Config) -> dict[str, WeightSource]:
        names = LLAMA_NORMS | {
            "norm": "norm",
            "attention.out": "self_attn.o_proj",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        }
        return ungated_sources(config, names, config.use_bias, config.use_bias)
