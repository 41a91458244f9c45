"""Gemma 3, its text models (Kamath et al., 2025): Gemma 2 with normalised queries
and keys, and a rotary base for each kind of layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bass.models.config import FULL, SLIDING, FamilyConfig, GemmaConfig, check_theta, rope_by_kind
from bass.models.decoder import GemmaDecoder, gemma_block
from bass.models.rope import Rotary
from bass.models.sources import GEMMA_NORMS, WeightSource, gated_sources, qk_norm_sources
from bass.ops.norms import HeadNorm, offset_scaled
from bass.records import Rotation


@dataclass(frozen=True)
class Gemma3TextConfig(GemmaConfig):
    """A config.json of `model_type: gemma3_text`.

    `rope_theta` and `rope_scaling` apply to the layers without a window, `rope_local_base_freq` to
    those with one. Newer files have both in `rope_parameters`, by the kind of layer.
    """

    model_type: ClassVar[str] = "gemma3_text"
    architecture: ClassVar[str] = "Gemma3ForCausalLM"
    # The field exists, and `transformers` ignores it.
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = GemmaConfig.assumes | {
        "attn_logit_softcapping": (None,)
    }
    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    rope_theta: float = 1000000.0
    rope_local_base_freq: float = 10000.0
    sliding_window_pattern: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_theta(self.rope_local_base_freq)

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Gemma3TextConfig":
        """As above."""
        full, sliding = rope_by_kind(config, cls.model_type)
        local = {"rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else {}
        return super().from_json(config | local | {"rope_parameters": None, "rope_scaling": full})

    @property
    def period(self) -> int:
        return max(self.sliding_window_pattern, 1)


@final
class Gemma3Text(GemmaDecoder):
    """A decoder of the Gemma 3 family."""

    config_type: ClassVar[type[FamilyConfig]] = Gemma3TextConfig

    def __init__(
        self,
        config: Gemma3TextConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        c, device = config, torch.device(device)
        super().__init__(c, device, dtype)
        heads = c.num_attention_heads + c.num_key_value_heads
        self.blocks = nn.ModuleList(
            gemma_block(
                c,
                device,
                dtype,
                HeadNorm(heads, c.head_dim, c.rms_norm_eps, device, dtype, offset_scaled),
            )
            for _ in range(c.num_hidden_layers)
        )
        self.local_rotary = Rotary(
            c.head_dim, c.rope_local_base_freq, c.max_position_embeddings, None, device, dtype
        )
        self.kinds = c.kinds

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        by_kind = {FULL: self.rotary(positions), SLIDING: self.local_rotary(positions)}
        return [by_kind[kind] for kind in self.kinds]

    @classmethod
    def sources(cls, config: Gemma3TextConfig) -> dict[str, WeightSource]:
        bias = config.attention_bias
        return gated_sources(config, GEMMA_NORMS, qkv_bias=bias, out_bias=bias) | qk_norm_sources(
            config
        )
