"""OPT (Zhang et al., 2022): learned positions, relu, LayerNorm before each half, or after it in the
model of 350M.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.models.config import FamilyConfig, check_heads
from bass.models.decoder import CausalDecoder
from bass.models.layers import MLP, Attention, PostNorm, PreNorm
from bass.models.sources import WeightSource, plain, with_bias
from bass.ops.activation import ACTIVATIONS
from bass.ops.embedding import embedding
from bass.ops.linear import Linear
from bass.ops.norms import LayerNorm
from bass.records import AttentionRule, DecoderShape

FIRST_ROW = 2  # row of the position table for position 0
EPS = 1e-5


@dataclass(frozen=True)
class OPTConfig(FamilyConfig):
    """A config.json of `model_type: opt`.

    `word_embed_proj_dim`: size of the embeddings; they are projected if it is not `hidden_size`.
    """

    model_type: ClassVar[str] = "opt"
    architecture: ClassVar[str] = "OPTForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {"activation_function": ("relu", *ACTIVATIONS)}
    vocab_size: int = 50272
    hidden_size: int = 768
    num_hidden_layers: int = 12
    ffn_dim: int = 3072
    max_position_embeddings: int = 2048
    num_attention_heads: int = 12
    word_embed_proj_dim: int = 0  # 0: hidden_size
    activation_function: str = "relu"
    do_layer_norm_before: bool = True
    _remove_final_layer_norm: bool = False
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "word_embed_proj_dim", self.word_embed_proj_dim or self.hidden_size
        )
        check_heads(self.num_attention_heads, self.num_attention_heads, self.head_dim)

    @property
    def head_dim(self) -> int:
        """Dimensions of each head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def shape(self) -> DecoderShape:
        heads, rules = (
            self.num_attention_heads,
            (AttentionRule(self.head_dim**-0.5),) * self.num_hidden_layers,
        )
        return DecoderShape(
            self.vocab_size, heads, heads, self.head_dim, self.max_position_embeddings, rules
        )

    @property
    def projected(self) -> bool:
        """Whether embeddings have another size than the residual stream."""
        return self.word_embed_proj_dim != self.hidden_size

    @property
    def normed_last(self) -> bool:
        """Whether a norm follows the last block."""
        return self.do_layer_norm_before and not self._remove_final_layer_norm


@final
class OPT(CausalDecoder):
    """A decoder of the OPT family."""

    config_type: ClassVar[type[FamilyConfig]] = OPTConfig
    ignored: ClassVar[tuple[str, ...]] = ()
    config: OPTConfig

    def __init__(
        self,
        config: OPTConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c.vocab_size, c.word_embed_proj_dim, c.tie_word_embeddings, device, dtype)
        self.config = config
        self.position_embed = nn.Parameter(
            torch.empty(
                c.max_position_embeddings + FIRST_ROW, c.hidden_size, device=device, dtype=dtype
            )
        )
        self.project_in = (
            Linear(c.word_embed_proj_dim, c.hidden_size, device, dtype) if c.projected else None
        )
        self.project_out = (
            Linear(c.hidden_size, c.word_embed_proj_dim, device, dtype) if c.projected else None
        )
        heads, affine = (
            (c.num_attention_heads, c.num_attention_heads, c.head_dim),
            c.layer_norm_elementwise_affine,
        )
        block = PreNorm if c.do_layer_norm_before else PostNorm
        self.blocks = nn.ModuleList(
            block(
                LayerNorm(c.hidden_size, EPS, device, dtype, affine),
                Attention(c.hidden_size, heads, device, dtype, c.enable_bias, c.enable_bias),
                LayerNorm(c.hidden_size, EPS, device, dtype, affine),
                MLP(c.hidden_size, c.ffn_dim, c.activation_function, device, dtype, c.enable_bias),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = (
            LayerNorm(c.hidden_size, EPS, device, dtype, affine) if c.normed_last else nn.Identity()
        )

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        x = embedding(tokens, self.embed)
        x = x if self.project_in is None else self.project_in(x)
        return x + embedding(positions + FIRST_ROW, self.position_embed)

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden if self.project_out is None else self.project_out(hidden))

    @classmethod
    def sources(cls, config: OPTConfig) -> dict[str, WeightSource]:
        c, size, root = config, (config.hidden_size,), "model.decoder"
        found = plain("embed", f"{root}.embed_tokens.weight", c.vocab_size)
        found |= plain(
            "position_embed",
            f"{root}.embed_positions.weight",
            c.max_position_embeddings + FIRST_ROW,
        )
        norms = {"norm": f"{root}.final_layer_norm"} if c.normed_last else {}
        if c.projected:
            found |= plain("project_in.weight", f"{root}.project_in.weight", c.hidden_size)
            found |= plain(
                "project_out.weight", f"{root}.project_out.weight", c.word_embed_proj_dim
            )
        if not c.tie_word_embeddings:
            found |= plain("head.weight", "lm_head.weight", c.vocab_size)
        for i in range(c.num_hidden_layers):
            ours, theirs = f"blocks.{i}", f"{root}.layers.{i}"
            norms |= {
                f"{ours}.attention_norm": f"{theirs}.self_attn_layer_norm",
                f"{ours}.mlp_norm": f"{theirs}.final_layer_norm",
            }
            qkv = [f"{theirs}.self_attn.{p}_proj" for p in "qkv"]
            found |= with_bias(f"{ours}.attention.qkv", qkv, size * 3, bias=c.enable_bias)
            found |= with_bias(
                f"{ours}.attention.out", [f"{theirs}.self_attn.out_proj"], size, bias=c.enable_bias
            )
            found |= with_bias(
                f"{ours}.mlp.up", [f"{theirs}.fc1"], (c.ffn_dim,), bias=c.enable_bias
            )
            found |= with_bias(f"{ours}.mlp.down", [f"{theirs}.fc2"], size, bias=c.enable_bias)
        for name, theirs in norms.items() if c.layer_norm_elementwise_affine else ():
            found |= with_bias(name, [theirs], size)
        return found
