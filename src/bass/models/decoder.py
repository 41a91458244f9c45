"""The common part of all families: embedding, blocks, final norm, head."""

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.interfaces import Attend, Decoder
from bass.models.config import FamilyConfig, GatedConfig, GemmaConfig, RotaryConfig
from bass.models.config_gpt import GPTConfig, SharedNormConfig
from bass.models.layers import (
    MLP,
    Attention,
    Block,
    GatedMLP,
    Parallel,
    PreNorm,
    ReorderedNorm,
    SandwichNorm,
    SparseMLP,
)
from bass.models.rope import Rotary
from bass.models.sources import WeightSource
from bass.ops.embedding import embedding
from bass.ops.linear import Linear, dense
from bass.ops.norms import HeadNorm, LayerNorm, OffsetRMSNorm, ProjectionNorm, RMSNorm
from bass.ops.residual import Residual
from bass.records import DecoderShape, Features, Rotation, Window


class CausalDecoder(nn.Module, Decoder):
    """The base of every family. A subclass makes `blocks`, each a `layers.Block`, `norm` and, for
    rotary positions, `rotary`. Parameters start empty.

    `head` is None if it is tied to the embedding; `head_bias` is then its bias, if any. `prefix`:
    the start of all tensor names except the head's; checkpoints of the bare model lack it.
    `ignored`: endings of tensor names in old checkpoints that no decoder needs.
    """

    replayable: ClassVar[bool] = True
    config_type: ClassVar[type[FamilyConfig]]
    prefix: ClassVar[str] = "model."
    ignored: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)
    config: Any  # a `config_type`
    blocks: nn.ModuleList
    norm: nn.Module

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        tied: bool,
        device: torch.device,
        dtype: torch.dtype,
        head_bias: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(vocab_size, hidden_size, device=device, dtype=dtype))
        self.head: nn.Module | None = (
            None if tied else Linear(hidden_size, vocab_size, device, dtype, head_bias)
        )
        self.head_bias = (
            nn.Parameter(torch.empty(vocab_size, device=device, dtype=dtype))
            if tied and head_bias
            else None
        )

    @property
    def shape(self) -> DecoderShape:
        return self.config.shape

    @classmethod
    @abstractmethod
    def sources(cls, config: Any) -> dict[str, WeightSource]:
        """The checkpoint tensors of each parameter."""
        ...

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        """The input of the first block."""
        return embedding(tokens, self.embed)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        """The rotary embedding of each block; None if positions are part of the embedding."""
        return itertools.repeat(None)

    def hidden(
        self, window: Window, attend: Attend, layers: tuple[int, ...] = ()
    ) -> tuple[Float[Tensor, "batch window hidden"], Features]:
        features: dict[int, Tensor] = {}
        x = None
        for layer, (x, _) in enumerate(self.streams(window, attend)):
            if layer in layers:
                features[layer] = x.tensor()
        assert x is not None
        features[len(self.blocks)] = x.normed(self.norm).tensor()
        return features[len(self.blocks)], tuple(features[layer] for layer in layers)

    def fill(self, window: Window, attend: Attend, layers: tuple[int, ...] = ()) -> Features:
        """As `Decoder.fill`. The last block computes only keys and values, unless `layers` includes
        the final state.
        """
        last, features = len(self.blocks) - 1, dict[int, Tensor]()
        if layers and max(layers) > last:
            return self.hidden(window, attend, layers)[1]
        for layer, (x, rotation) in enumerate(self.streams(window, attend)):
            if layer in layers:
                features[layer] = x.tensor()
            if layer == last and isinstance(block := self.blocks[last], Block):
                attend.store(last, block.project(x, rotation))
                break
        return tuple(features[layer] for layer in layers)

    def streams(self, window: Window, attend: Attend) -> Iterator[tuple[Residual, Rotation | None]]:
        """The residual stream before each block, with the block's rotary embedding; then the stream
        after the last block. A reader that stops early ends the pass there.
        """
        x = Residual(self.embedded(window.tokens, window.positions))
        for layer, (block, rotation) in enumerate(
            zip(self.blocks, self.rotations(window.positions), strict=False)
        ):
            yield x, rotation
            x = block(x, rotation, attend, layer)
        yield x, None

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        if self.head is None:
            return dense(hidden, self.embed, self.head_bias)
        return self.head(hidden)


class RotaryDecoder(CausalDecoder):
    """A decoder with rotary positions. A subclass makes its `blocks` and `norm`."""

    def __init__(
        self,
        config: RotaryConfig,
        device: torch.device,
        dtype: torch.dtype,
        rotary_dim: int | None = None,
        head_bias: bool = False,
    ) -> None:
        c = config
        super().__init__(
            c.vocab_size, c.hidden_size, c.tie_word_embeddings, device, dtype, head_bias
        )
        self.config = config
        self.rotary = Rotary(
            c.head_dim,
            c.rope_theta,
            c.max_position_embeddings,
            c.rope_scaling,
            device,
            dtype,
            rotary_dim,
        )

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        return itertools.repeat(self.rotary(positions))


class GemmaDecoder(RotaryDecoder):
    """A decoder with a scaled embedding, and optionally a soft cap on the logits."""

    config: GemmaConfig

    def __init__(self, config: GemmaConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config, device, dtype)
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        # rounded to the type of the weights
        self.scale = torch.tensor(config.hidden_size**0.5, dtype=dtype).item()

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        return embedding(tokens, self.embed) * self.scale

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        logits, cap = super().unembed(hidden), self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)


def gemma_block(
    c: GemmaConfig, device: torch.device, dtype: torch.dtype, qk_norm: HeadNorm | None = None
) -> SandwichNorm:
    """The block of Gemma 2 and 3."""
    norms = [OffsetRMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype) for _ in range(4)]
    heads, bias = (c.num_attention_heads, c.num_key_value_heads, c.head_dim), c.attention_bias
    attention = Attention(c.hidden_size, heads, device, dtype, bias, bias, qk_norm)
    mlp = GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_activation, device, dtype)
    return SandwichNorm(norms[0], attention, norms[1], norms[2], mlp, norms[3])


class GPTDecoder(CausalDecoder):
    """GPT-2's decoder: learned positions, LayerNorm, biases in every product except the head."""

    prefix: ClassVar[str] = "transformer."
    ignored: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")
    config: GPTConfig

    def __init__(
        self,
        config: GPTConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c.vocab_size, c.n_embd, c.tie_word_embeddings, device, dtype)
        self.config = config
        self.position_embed = nn.Parameter(
            torch.empty(c.n_positions, c.n_embd, device=device, dtype=dtype)
        )
        self.blocks = nn.ModuleList(
            PreNorm(
                LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype),
                Attention(
                    c.n_embd,
                    (c.n_head, c.kv_heads, c.head_dim),
                    device,
                    dtype,
                    bias=True,
                    out_bias=True,
                ),
                LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype),
                MLP(c.n_embd, c.inner, c.activation_function, device, dtype),
            )
            for _ in range(c.n_layer)
        )
        self.norm = LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype)

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        return embedding(tokens, self.embed) + embedding(
            positions.clamp(min=0), self.position_embed
        )


class SharedNormDecoder(CausalDecoder):
    """GPT-J's decoder: rotary positions, one LayerNorm per block, a head with a bias."""

    prefix: ClassVar[str] = "transformer."
    ignored: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias", ".attn.causal_mask")
    config: SharedNormConfig

    def __init__(
        self,
        config: SharedNormConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(
            c.vocab_size, c.n_embd, c.tie_word_embeddings, device, dtype, head_bias=True
        )
        self.config = config
        self.rotary = Rotary(c.head_dim, 10000.0, c.n_positions, None, device, dtype, c.rotary_dim)
        self.blocks = nn.ModuleList(
            Parallel(
                LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype),
                Attention(c.n_embd, (c.n_head, c.kv_heads, c.head_dim), device, dtype),
                None,
                MLP(c.n_embd, c.inner, c.activation_function, device, dtype),
            )
            for _ in range(c.n_layer)
        )
        self.norm = LayerNorm(c.n_embd, c.layer_norm_epsilon, device, dtype)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        return itertools.repeat(self.rotary(positions))


def gated_block(
    c: GatedConfig,
    device: torch.device,
    dtype: torch.dtype,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: HeadNorm | ProjectionNorm | None = None,
    mlp: SparseMLP | None = None,
    sinks: bool = False,
) -> PreNorm:
    """Llama's block. `mlp`: a mixture of experts instead of its gated MLP."""
    heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
    return PreNorm(
        RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype),
        Attention(c.hidden_size, heads, device, dtype, qkv_bias, out_bias, qk_norm, sinks),
        RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype),
        mlp or GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype, mlp_bias),
    )


def reordered_block(
    c: GatedConfig,
    device: torch.device,
    dtype: torch.dtype,
    qk_norm: HeadNorm | ProjectionNorm,
    bias: bool = False,
) -> ReorderedNorm:
    """The block of OLMo 2 and 3 and of EXAONE 4. `bias`: of attention."""
    heads = (c.num_attention_heads, c.num_key_value_heads, c.head_dim)
    return ReorderedNorm(
        RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype),
        Attention(c.hidden_size, heads, device, dtype, bias, bias, qk_norm),
        RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype),
        GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype),
    )
