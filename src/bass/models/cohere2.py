"""Command R7B and Command A (Cohere, 2025): parallel attention and MLP behind one LayerNorm without
a bias; windows with rotary embedding in adjacent pairs, and every fourth layer with neither.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.models.config import GLOBAL, SLIDING, Assumed, AttributeMap, LayerTypesConfig
from bass.models.decoder import RotaryDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, Parallel
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class Cohere2Config(LayerTypesConfig):
    """A config.json of `model_type: cohere2`. Logits are multiplied by `logit_scale`."""

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
    attribute_map: ClassVar[AttributeMap] = {
        "rms_norm_eps": "layer_norm_eps", "period": "sliding_window_pattern"
    }  # fmt: skip
    interleaved = True
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    logit_scale: float = 0.0625
    attention_bias: bool = False
    sliding_window: int | None = 4096
    period: int = 4

    @cached_property
    def rotations(self) -> tuple[str | None, ...]:
        return tuple(GLOBAL if kind == SLIDING else None for kind in self.kinds)


@final
class Cohere2(RotaryDecoder):
    config_type = Cohere2Config
    norm_type = partial(LayerNorm, bias=False)

    def block(self, c: Cohere2Config, make: LayerFactory, layer: int) -> Parallel:
        return Parallel(make, Attention(make, c.attention_bias), GatedMLP(make))

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden) * self.config.logit_scale
