"""OPT (Zhang et al., 2022): learned positions, relu, LayerNorm before each half, or after it in the
model of 350M.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.models.config import Assumed, AttributeMap, FamilyConfig
from bass.models.decoder import CausalDecoder
from bass.models.layers import MLP, Attention, LayerFactory, PostNorm, PreNorm
from bass.ops.norms import LayerNorm
from bass.ops.residual import embedding

FIRST_ROW = 2  # row of the position table for position 0


@dataclass(frozen=True)
class OPTConfig(FamilyConfig):
    """A config.json of `model_type: opt`.

    `word_embed_proj_dim`: size of the embeddings; they are projected if it is not `hidden_size`.
    """

    model_type = "opt"
    architecture = "OPTForCausalLM"
    attribute_map: ClassVar[AttributeMap] = {
        "num_key_value_heads": None, "head_dim": None, "intermediate_size": "ffn_dim",
        "hidden_act": "activation_function", "rms_norm_eps": None,
    }  # fmt: skip
    assumes: ClassVar[Assumed] = {"_remove_final_layer_norm": (False,)}
    rms_norm_eps: float = 1e-5
    word_embed_proj_dim: int = 0  # 0: hidden_size
    hidden_act: str = "relu"
    do_layer_norm_before: bool = True
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        size = self.word_embed_proj_dim or self.hidden_size
        object.__setattr__(self, "word_embed_proj_dim", size)
        super().__post_init__()

    @property
    def embedding_size(self) -> int:
        return self.word_embed_proj_dim


@final
class OPT(CausalDecoder):
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

    def setup(self, c: OPTConfig, make: LayerFactory) -> None:
        self.position_embed = make.empty(c.max_position_embeddings + FIRST_ROW, c.hidden_size)
        inner, outer, projected = c.hidden_size, c.embedding_size, c.embedding_size != c.hidden_size
        self.project_in = make.linear(outer, inner) if projected else None
        self.project_out = make.linear(inner, outer) if projected else None

    def block(self, c: OPTConfig, make: LayerFactory, layer: int) -> PreNorm | PostNorm:
        kind = PreNorm if c.do_layer_norm_before else PostNorm
        layers = Attention(make, c.enable_bias), MLP(make, c.enable_bias)
        return kind(make, *layers, affine=c.layer_norm_elementwise_affine)

    def last_norm(self, c: OPTConfig, make: LayerFactory) -> nn.Module:
        if not c.do_layer_norm_before:
            return nn.Identity()
        return make.norm(affine=c.layer_norm_elementwise_affine)

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        x = super().embedded(tokens, positions)
        x = x if self.project_in is None else self.project_in(x)
        return x + embedding(positions + FIRST_ROW, self.position_embed)

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden if self.project_out is None else self.project_out(hidden))
