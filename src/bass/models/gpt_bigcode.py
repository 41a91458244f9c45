"""GPT-BigCode (Ben Allal et al., 2023): GPT-2 with multi-query attention. SantaCoder, StarCoder."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from bass.models.config import FamilyConfig
from bass.models.config_gpt import GPTConfig
from bass.models.decoder import GPTDecoder
from bass.models.sources import WeightSource, fused_rows, gpt_sources
from bass.ops.activation import ACTIVATIONS
from bass.records import AttentionRule


@dataclass(frozen=True)
class GPTBigCodeConfig(GPTConfig):
    """A config.json of `model_type: gpt_bigcode`."""

    model_type: ClassVar[str] = "gpt_bigcode"
    architecture: ClassVar[str] = "GPTBigCodeForCausalLM"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = GPTConfig.assumes | {
        "activation_function": ("gelu_pytorch_tanh", *ACTIVATIONS)
    }
    activation_function: str = "gelu_pytorch_tanh"
    multi_query: bool = True
    scale_attn_weights: bool = True

    @property
    def kv_heads(self) -> int:
        return 1 if self.multi_query else self.n_head

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return (
            AttentionRule(self.head_dim**-0.5 if self.scale_attn_weights else 1.0),
        ) * self.n_layer


@final
class GPTBigCode(GPTDecoder):
    """A decoder of the GPT-BigCode family.

    Without `multi_query`, each head's queries, keys and values are stored together.
    """

    config_type: ClassVar[type[FamilyConfig]] = GPTBigCodeConfig

    @classmethod
    def sources(cls, config: GPTBigCodeConfig) -> dict[str, WeightSource]:
        c = config
        return gpt_sources(c, None if c.multi_query else fused_rows(c.n_head, 3 * c.n_embd))
