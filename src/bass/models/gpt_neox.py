"""GPT-NeoX (Black et al., 2022): rotary embedding on a part of each head; parallel or sequential
attention and MLP. Pythia, StableLM-alpha.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.models.config import Config, FamilyConfig, RotaryConfig, check_rotary
from bass.models.decoder import RotaryDecoder
from bass.models.layers import MLP, Attention, Parallel, PreNorm
from bass.models.rope import pair_order
from bass.models.sources import LLAMA_NORMS, WeightSource, fused_rows, fused_sources, head_rows
from bass.ops.activation import ACTIVATIONS
from bass.ops.norms import LayerNorm


@dataclass(frozen=True)
class GPTNeoXConfig(RotaryConfig):
    """A config.json of `model_type: gpt_neox`.

    `partial_rotary_factor`: the share of a head's dimensions that are rotated.
    """

    model_type: ClassVar[str] = "gpt_neox"
    architecture: ClassVar[str] = "GPTNeoXForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {"hidden_act": ("gelu", *ACTIVATIONS)}
    vocab_size: int = 50432
    hidden_size: int = 6144
    intermediate_size: int = 24576
    num_hidden_layers: int = 44
    num_attention_heads: int = 64
    partial_rotary_factor: float = 0.25
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    use_parallel_residual: bool = True
    attention_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary(self.rotary_dim, self.head_dim)

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read config.json; two of the rotary fields have names of this family, which count before
        the common ones.
        """
        own = {
            "rope_theta": config.get("rotary_emb_base"),
            "partial_rotary_factor": config.get("rotary_pct"),
        }
        return super().from_json(config | {k: v for k, v in own.items() if v is not None})

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {
            "rotary_emb_base": self.rope_theta,
            "rotary_pct": self.partial_rotary_factor,
        }

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions of each head."""
        return int(self.head_dim * self.partial_rotary_factor)


@final
class GPTNeoX(RotaryDecoder):
    """A decoder of the GPT-NeoX family."""

    config_type: ClassVar[type[FamilyConfig]] = GPTNeoXConfig
    prefix: ClassVar[str] = "gpt_neox."
    ignored: ClassVar[tuple[str, ...]] = (
        ".rotary_emb.inv_freq",
        ".attention.bias",
        ".attention.masked_bias",
    )

    def __init__(
        self,
        config: GPTNeoXConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype, c.rotary_dim)
        heads = (c.num_attention_heads, c.num_attention_heads, c.head_dim)
        block = Parallel if c.use_parallel_residual else PreNorm
        self.blocks = nn.ModuleList(
            block(
                LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype),
                Attention(c.hidden_size, heads, device, dtype, c.attention_bias, c.attention_bias),
                LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype),
                MLP(c.hidden_size, c.intermediate_size, c.hidden_act, device, dtype),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.norm = LayerNorm(c.hidden_size, c.layer_norm_eps, device, dtype)

    @classmethod
    def sources(cls, config: GPTNeoXConfig) -> dict[str, WeightSource]:
        c, heads = config, config.num_attention_heads
        in_head = head_rows(pair_order(c.head_dim, c.rotary_dim, interleaved=False), heads, heads)
        rows = fused_rows(heads, 3 * c.hidden_size)[in_head]
        ends = {"embed": "embed_in", "norm": "final_layer_norm", "head": "embed_out"}
        return fused_sources(
            c, ends, "gpt_neox.layers", "attention", LLAMA_NORMS, rows, c.attention_bias
        )
