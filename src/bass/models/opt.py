"""OPT (Zhang et al., 2022): learned positions, relu, LayerNorm before each half, or after it in the
model of 350M.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.models.config import FamilyConfig
from bass.models.decoder import CausalDecoder
from bass.models.fields import Act, Size
from bass.models.layers import LayerFactory, PostNorm, PreNorm
from bass.ops.embedding import embedding
from bass.ops.norms import LayerNorm

FIRST_ROW = 2  # row of the position table for position 0


@dataclass(frozen=True)
class OPTConfig(FamilyConfig):
    """A config.json of `model_type: opt`.

    `word_embed_proj_dim`: size of the embeddings; they are projected if it is not `hidden_size`.
    """

    model_type = "opt"
    architecture = "OPTForCausalLM"
    attribute_map: ClassVar[dict[str, str]] = {
        "num_key_value_heads": "num_attention_heads", "intermediate_size": "ffn_dim",
        "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_eps",
    }  # fmt: skip
    layer_norm_eps: ClassVar[float] = 1e-5
    vocab_size: Size = 50272
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    ffn_dim: Size = 3072
    max_position_embeddings: Size = 2048
    num_attention_heads: Size = 12
    word_embed_proj_dim: int = 0  # 0: hidden_size
    activation_function: Act = "relu"
    do_layer_norm_before: bool = True
    _remove_final_layer_norm: bool = False
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        size = self.word_embed_proj_dim or self.hidden_size
        object.__setattr__(self, "word_embed_proj_dim", size)
        super().__post_init__()

    @property
    def head_dim(self) -> int:
        """Dimensions of each head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def embedding_size(self) -> int:
        return self.word_embed_proj_dim

    @property
    def normed_last(self) -> bool:
        """Whether a norm follows the last block."""
        return self.do_layer_norm_before and not self._remove_final_layer_norm


@final
class OPT(CausalDecoder):
    """A decoder of the OPT family."""

    config_type = OPTConfig
    norm_type = LayerNorm
    names = CausalDecoder.names | {
        "embed": "model.decoder.embed_tokens.weight",
        "position_embed": "model.decoder.embed_positions.weight",
        "project_in": "model.decoder.project_in",
        "project_out": "model.decoder.project_out",
        "norm": "model.decoder.final_layer_norm",
        "blocks": "model.decoder.layers",
        "attention_norm": "self_attn_layer_norm",
        "attention.out": "self_attn.out_proj",
        "mlp_norm": "final_layer_norm",
        "mlp.up": "fc1",
        "mlp.down": "fc2",
    }
    ignored = ()

    def setup(self, c: OPTConfig, make: LayerFactory) -> None:
        self.position_embed = make.empty(c.max_position_embeddings + FIRST_ROW, c.hidden_size)
        inner, outer, projected = c.hidden_size, c.embedding_size, c.embedding_size != c.hidden_size
        self.project_in = make.linear(outer, inner) if projected else None
        self.project_out = make.linear(inner, outer) if projected else None

    def block(self, c: OPTConfig, make: LayerFactory, layer: int) -> PreNorm | PostNorm:
        norms = [make.norm(affine=c.layer_norm_elementwise_affine) for _ in range(2)]
        attention = make.attention(c.enable_bias, c.enable_bias)
        kind = PreNorm if c.do_layer_norm_before else PostNorm
        return kind(norms[0], attention, norms[1], make.mlp(c.enable_bias))

    def last_norm(self, c: OPTConfig, make: LayerFactory) -> nn.Module:
        affine = c.layer_norm_elementwise_affine
        return make.norm(affine=affine) if c.normed_last else nn.Identity()

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        x = embedding(tokens, self.embed)
        x = x if self.project_in is None else self.project_in(x)
        return x + embedding(positions + FIRST_ROW, self.position_embed)

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden if self.project_out is None else self.project_out(hidden))
