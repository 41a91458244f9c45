"""GPT-BigCode (Ben Allal et al., 2023): GPT-2 with multi-query attention. SantaCoder, StarCoder."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.models.config import AttributeMap
from bass.models.gpt2 import GPT2, GPT2Config
from bass.models.sources import fused_rows


@dataclass(frozen=True)
class GPTBigCodeConfig(GPT2Config):
    """A config.json of `model_type: gpt_bigcode`. Without `multi_query`, each head's queries, keys
    and values are stored together.
    """

    model_type = "gpt_bigcode"
    architecture = "GPTBigCodeForCausalLM"
    attribute_map: ClassVar[AttributeMap] = GPT2Config.attribute_map | {
        "scale_attn_by_inverse_layer_idx": None
    }
    hidden_act: str = "gelu_pytorch_tanh"
    multi_query: bool = True

    def __post_init__(self) -> None:
        heads = 1 if self.multi_query else self.num_attention_heads
        object.__setattr__(self, "num_key_value_heads", heads)
        super().__post_init__()

    @property
    def qkv_rows(self) -> np.ndarray | None:
        if self.multi_query:
            return None
        return fused_rows(self.num_attention_heads, 3 * self.hidden_size)


@final
class GPTBigCode(GPT2):
    config_type = GPTBigCodeConfig
    transposed = ()
