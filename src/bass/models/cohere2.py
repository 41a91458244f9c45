"""Command R7B and Command A (Cohere, 2025): parallel attention and MLP behind one LayerNorm without
a bias; windows with rotary embedding in adjacent pairs, and every fourth layer with neither.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.models.config import SLIDING, Assumed, LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.fields import Act, Size
from bass.models.layers import LayerFactory, Parallel
from bass.ops.norms import LayerNorm
from bass.records import Rotation


@dataclass(frozen=True)
class Cohere2Config(LayerTypesConfig):
    """A config.json of `model_type: cohere2`.

    Without `layer_types`, every `sliding_window_pattern`-th layer has no window. Logits are
    multiplied by `logit_scale`.
    """

    model_type = "cohere2"
    architecture = "Cohere2ForCausalLM"
    assumes: ClassVar[Assumed] = {
        "use_qk_norm": (False, None),
        "use_parallel_block": (True, None),
        "use_gated_activation": (True, None),
        "position_embedding_type": ("rope_gptj", None),
        "rotary_pct": (1.0, None),
        "order_of_interleaved_layers": ("local_attn_first", None),
    }
    attribute_map: ClassVar[dict[str, str]] = {"rms_norm_eps": "layer_norm_eps"}
    interleaved = True
    vocab_size: Size = 256000
    hidden_size: Size = 8192
    intermediate_size: int = 22528
    num_hidden_layers: Size = 40
    num_attention_heads: Size = 64
    max_position_embeddings: Size = 8192
    tie_word_embeddings: bool = True
    hidden_act: Act = "silu"
    layer_norm_eps: float = 1e-5
    logit_scale: float = 0.0625
    attention_bias: bool = False
    sliding_window: int | None = 4096
    sliding_window_pattern: Size = 4

    @property
    def period(self) -> int:
        return self.sliding_window_pattern


@final
class Cohere2(RotaryDecoder):
    """A decoder of the Cohere 2 family."""

    config_type = Cohere2Config
    norm_type = LayerNorm

    def block(self, c: Cohere2Config, make: LayerFactory, layer: int) -> Parallel:
        attention = make.attention(c.attention_bias, c.attention_bias)
        return Parallel(make.norm(bias=False), attention, None, make.gated_mlp())

    def last_norm(self, c: Cohere2Config, make: LayerFactory) -> nn.Module:
        return make.norm(bias=False)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        rotation = self.rotary(positions)
        return [rotation if kind == SLIDING else None for kind in self.config.kinds]

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden) * self.config.logit_scale
