"""Command R7B and Command A (Cohere, 2025): parallel attention and MLP behind one LayerNorm without
a bias; windows with rotary embedding in adjacent pairs, and every fourth layer with neither.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.models.config import FULL, SLIDING, FamilyConfig, RotaryConfig, check_kinds, layer_rules
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, Parallel
from bass.models.rope import pair_order
from bass.models.sources import WeightSource, gated_sources, head_rows
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm
from bass.records import AttentionRule, Rotation


@dataclass(frozen=True)
class Cohere2Config(RotaryConfig):
    """A config.json of `model_type: cohere2`.

    Without `layer_types`, every `sliding_window_pattern`-th layer has no window. Logits are
    multiplied by `logit_scale`.
    """

    model_type: ClassVar[str] = "cohere2"
    architecture: ClassVar[str] = "Cohere2ForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("silu", *ACTIVATIONS),
        "use_qk_norm": (False, None),
        "use_parallel_block": (True, None),
        "use_gated_activation": (True, None),
        "position_embedding_type": ("rope_gptj", None),
        "rotary_pct": (1.0, None),
        "order_of_interleaved_layers": ("local_attn_first", None),
    }
    vocab_size: int = 256000
    hidden_size: int = 8192
    intermediate_size: int = 22528
    num_hidden_layers: int = 40
    num_attention_heads: int = 64
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    hidden_act: str = "silu"
    layer_norm_eps: float = 1e-5
    logit_scale: float = 0.0625
    attention_bias: bool = False
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 4
    layer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.kinds, self.num_hidden_layers, self.sliding_window)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        period = max(self.sliding_window_pattern, 1)
        return self.layer_types or tuple(
            SLIDING if (i + 1) % period else FULL for i in range(self.num_hidden_layers)
        )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return layer_rules(self.kinds, AttentionRule(self.head_dim**-0.5, self.sliding_window))


@final
class Cohere2(RotaryDecoder):
    """A decoder of the Cohere 2 family."""

    config_type: ClassVar[type[FamilyConfig]] = Cohere2Config

    def __init__(
        self,
        config: Cohere2Config,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads, bias = (c.num_attention_heads, c.num_key_value_heads, c.head_dim), c.attention_bias
        self.blocks = nn.ModuleList(
            Parallel(
                LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype, bias=False),
                Attention(c.hidden_size, heads, device, dtype, bias, bias),
                None,
                GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype, bias=False)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        rotation = self.rotary(positions)
        return [rotation if kind == SLIDING else None for kind in self.config.kinds]

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden) * self.config.logit_scale

    @classmethod
    def sources(cls, config: Cohere2Config) -> dict[str, WeightSource]:
        c, bias = config, config.attention_bias
        order = pair_order(c.head_dim, c.head_dim, interleaved=True)
        rows = head_rows(order, c.num_attention_heads, c.num_key_value_heads)
        norms = {"attention_norm": "input_layernorm"}
        return gated_sources(c, norms, qkv_bias=bias, out_bias=bias, qkv_rows=rows)
