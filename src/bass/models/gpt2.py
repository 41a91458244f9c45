"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, weights stored [in, out]."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from bass.models.config import FamilyConfig, check_heads
from bass.models.decoder import CausalDecoder
from bass.models.layers import ACTIVATIONS, MLP, Attention, LayerNorm, PreNorm
from bass.models.sources import Source, plain, with_bias
from bass.records import AttentionRule, DecoderShape


@dataclass(frozen=True)
class GPT2Config(FamilyConfig):
    """A config.json of `model_type: gpt2`."""

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "activation_function": ("gelu_new", *ACTIVATIONS),
        "add_cross_attention": (False,),
        "scale_attn_weights": (True,),
    }
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        check_heads(self.n_head, self.n_head, self.n_embd // self.n_head)

    @property
    def inner(self) -> int:
        """Width of the MLP."""
        return self.n_inner or 4 * self.n_embd


@final
class GPT2(CausalDecoder):
    """A decoder of the GPT-2 family."""

    config_type: ClassVar[type[FamilyConfig]] = GPT2Config
    prefix: ClassVar[str] = "transformer."
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")

    def __init__(self, config: GPT2Config, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        c, device = config, torch.device(device)
        super().__init__(c.vocab_size, c.n_embd, c.tie_word_embeddings, device, dtype)
        self.config = config
        self.places = nn.Parameter(torch.empty(c.n_positions, c.n_embd, device=device, dtype=dtype))
        heads = (c.n_head, c.n_head, c.n_embd // c.n_head)
        self.blocks = nn.ModuleList(
            PreNorm(
                LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype),
                Attention(c.n_embd, heads, device, dtype, bias=True, out_bias=True),
                LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype),
                MLP(c.n_embd, c.inner, c.activation_function, device, dtype),
            )
            for _ in range(c.n_layer)
        )
        self.norm = LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype)

    @property
    def shape(self) -> DecoderShape:
        c, dim = self.config, self.config.n_embd // self.config.n_head
        by_layer = c.scale_attn_by_inverse_layer_idx
        rules = tuple(AttentionRule(dim**-0.5 / (layer + 1 if by_layer else 1)) for layer in range(c.n_layer))
        return DecoderShape(c.vocab_size, c.n_head, c.n_head, dim, c.n_positions, rules)

    def embedded(self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]) -> Tensor:
        return F.embedding(tokens, self.embed) + F.embedding(positions.clamp(min=0), self.places)

    @classmethod
    def sources(cls, config: GPT2Config) -> dict[str, Source]:
        c = config
        found = plain("embed", "transformer.wte.weight", c.vocab_size) | plain("places", "transformer.wpe.weight", c.n_positions)
        found |= with_bias("norm", ["transformer.ln_f"], (c.n_embd,))
        if not c.tie_word_embeddings:
            found |= plain("head.weight", "lm_head.weight", c.vocab_size)
        for i in range(c.n_layer):
            ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
            found |= with_bias(f"{ours}.attention_norm", [f"{theirs}.ln_1"], (c.n_embd,))
            found |= with_bias(f"{ours}.mlp_norm", [f"{theirs}.ln_2"], (c.n_embd,))
            linear = {
                **with_bias(f"{ours}.attention.qkv", [f"{theirs}.attn.c_attn"], (3 * c.n_embd,)),
                **with_bias(f"{ours}.attention.out", [f"{theirs}.attn.c_proj"], (c.n_embd,)),
                **with_bias(f"{ours}.mlp.up", [f"{theirs}.mlp.c_fc"], (c.inner,)),
                **with_bias(f"{ours}.mlp.down", [f"{theirs}.mlp.c_proj"], (c.n_embd,)),
            }
            found |= {name: replace(source, transposed=name.endswith("weight")) for name, source in linear.items()}
        return found
