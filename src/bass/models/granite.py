"""Granite 3 (IBM, 2024): Llama with a multiplier of the embedding, of both summands of a block, of
scores and of logits.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.interfaces import Attend
from bass.models.config import FamilyConfig, GatedConfig
from bass.models.decoder import RotaryDecoder, gated_block
from bass.models.layers import Block, PreNorm
from bass.models.sources import WeightSource, gated_sources
from bass.ops.norms import RMSNorm
from bass.ops.residual import Residual
from bass.records import AttentionRule, Rotation


@dataclass(frozen=True)
class GraniteConfig(GatedConfig):
    """A config.json of `model_type: granite`.

    `attention_multiplier` is the scale of scores; logits are divided by `logits_scaling`.
    """

    model_type: ClassVar[str] = "granite"
    architecture: ClassVar[str] = "GraniteForCausalLM"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    logits_scaling: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logits_scaling == 0:
            raise CheckpointError(
                "config.json has `logits_scaling=0`, by which logits are divided: download the "
                "checkpoint again."
            )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return (AttentionRule(self.attention_multiplier),) * self.num_hidden_layers


class ScaledBlock(Block):
    """x + by · attention(norm(x)), then x + by · mlp(norm(x))."""

    def __init__(self, block: Block, by: float) -> None:
        super().__init__(block.attention_norm, block.attention, block.mlp_norm, block.mlp)
        self.by = by

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        attended = self.attention(x.normed(self.attention_norm), rotation, attend, layer)
        x = x.plus(attended, scale=self.by)
        return x.plus(self.mlp(x.normed(self.mlp_norm)), scale=self.by)


class GraniteDecoder(RotaryDecoder):
    """The multipliers around the blocks. A subclass makes each block with `block`."""

    config: GraniteConfig

    def __init__(
        self,
        config: GraniteConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        self.blocks = nn.ModuleList(
            ScaledBlock(self.block(c, device, dtype), c.residual_multiplier)
            for _ in range(c.num_hidden_layers)
        )
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)

    @classmethod
    def block(cls, c: Any, device: torch.device, dtype: torch.dtype) -> PreNorm:
        """A block without multipliers."""
        bias = c.attention_bias
        return gated_block(c, device, dtype, bias, bias, c.mlp_bias)

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        return super().embedded(tokens, positions) * self.config.embedding_multiplier

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return super().unembed(hidden) / self.config.logits_scaling


@final
class Granite(GraniteDecoder):
    """A decoder of the Granite family."""

    config_type: ClassVar[type[FamilyConfig]] = GraniteConfig

    @classmethod
    def sources(cls, config: GraniteConfig) -> dict[str, WeightSource]:
        bias = config.attention_bias
        return gated_sources(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)
