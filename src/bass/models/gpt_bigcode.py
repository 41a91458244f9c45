"""GPT-BigCode (Ben Allal et al., 2023): GPT-2 with multi-query attention. SantaCoder, StarCoder."""

from dataclasses import dataclass
from typing import final

import numpy as np

from bass.models.config import GPTConfig
from bass.models.decoder import GPTDecoder
from bass.models.fields import Act
from bass.models.sources import fused_rows
from bass.records import AttentionRule


@dataclass(frozen=True)
class GPTBigCodeConfig(GPTConfig):
    """A config.json of `model_type: gpt_bigcode`. Without `multi_query`, each head's queries, keys
    and values are stored together.
    """

    model_type = "gpt_bigcode"
    architecture = "GPTBigCodeForCausalLM"
    activation_function: Act = "gelu_pytorch_tanh"
    multi_query: bool = True
    scale_attn_weights: bool = True

    @property
    def kv_heads(self) -> int:
        return 1 if self.multi_query else self.n_head

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return super().rules if self.scale_attn_weights else (AttentionRule(1.0),) * self.n_layer

    @property
    def qkv_rows(self) -> np.ndarray | None:
        return None if self.multi_query else fused_rows(self.n_head, 3 * self.n_embd)


@final
class GPTBigCode(GPTDecoder):
    """A decoder of the GPT-BigCode family."""

    config_type = GPTBigCodeConfig
