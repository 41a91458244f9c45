"""What all families have in common: tokens are embedded, pass through the blocks, are normalised, and unembedded."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.interfaces import Attend, Decoder
from bass.models.config import FamilyConfig, GatedConfig, RotaryConfig
from bass.models.layers import Attention, GatedMLP, Linear, PreNorm, RMSNorm
from bass.models.rope import Angles, Rotary
from bass.models.sources import Source
from bass.records import DecoderShape


class CausalDecoder(nn.Module, Decoder):
    """The base of every family. A subclass makes `blocks`, `norm` and, for rotary positions, `rotary`; the parameters start empty.

    `head` is None where the embedding is tied to it. `prefix`: what stands before the names of all tensors but the
    head's; checkpoints of the bare model lack it. `buffers`: endings of tensors that old checkpoints hold and no decoder needs.
    """

    config_type: ClassVar[type[FamilyConfig]]
    prefix: ClassVar[str] = "model."
    buffers: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)
    config: FamilyConfig
    blocks: nn.ModuleList
    norm: nn.Module

    def __init__(
        self, vocab_size: int, hidden_size: int, tied: bool, device: torch.device, dtype: torch.dtype, head_bias: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(vocab_size, hidden_size, device=device, dtype=dtype))
        self.head = None if tied else Linear(hidden_size, vocab_size, device, dtype, head_bias)

    @classmethod
    @abstractmethod
    def sources(cls, config: Any) -> dict[str, Source]:
        """Where each of our parameters comes from."""
        ...

    def embedded(self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]) -> Tensor:
        """What enters the first block."""
        return F.embedding(tokens, self.embed)

    def angles(self, positions: Int[Tensor, "batch window"]) -> Angles | None:
        """What all blocks know of the positions; None where they are part of the embedding."""
        return None

    def hidden(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"], attend: Attend
    ) -> Float[Tensor, "batch window hidden"]:
        x = self.embedded(tokens, positions)
        angles = self.angles(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, angles, attend, layer)
        return self.norm(x)

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return F.linear(hidden, self.embed) if self.head is None else self.head(hidden)


class RotaryDecoder(CausalDecoder):
    """A decoder whose positions are rotary; a subclass makes its `blocks` and `norm`."""

    def __init__(self, config: RotaryConfig, device: torch.device, dtype: torch.dtype, rotary_dim: int | None = None) -> None:
        c = config
        super().__init__(c.vocab_size, c.hidden_size, c.tie_word_embeddings, device, dtype)
        self.config = config
        self.rotary = Rotary(c.head_dim, c.rope_theta, c.max_position_embeddings, c.rope_scaling, device, dtype, rotary_dim)

    @property
    def shape(self) -> DecoderShape:
        c = self.config
        return DecoderShape(c.vocab_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.context, c.rules)

    def angles(self, positions: Int[Tensor, "batch window"]) -> Angles:
        return self.rotary(positions)


def gated_block(
    c: GatedConfig, device: torch.device, dtype: torch.dtype, qkv_bias: bool = False, out_bias: bool = False, mlp_bias: bool = False
) -> PreNorm:
    """Llama's block."""
    return PreNorm(
        RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype),
        Attention(c.hidden_size, (c.num_attention_heads, c.num_key_value_heads, c.head_dim), device, dtype, qkv_bias, out_bias),
        RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype),
        GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype, mlp_bias),
    )
