"""GPT-BigCode (Ben Allal et al., 2023): GPT-2 with multi-query attention. SantaCoder, StarCoder."""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import Assumed
from bass.models.gpt2 import GPT2, GPT2Config


@dataclass(frozen=True)
class GPTBigCodeConfig(GPT2Config):
    """A config.json of `model_type: gpt_bigcode`."""

    model_type = "gpt_bigcode"
    architecture = "GPTBigCodeForCausalLM"
    assumes: ClassVar[Assumed] = {"multi_query": (True,)}
    num_key_value_heads: int = 1
    hidden_act: str = "gelu_pytorch_tanh"


@final
class GPTBigCode(GPT2):
    config_type = GPTBigCodeConfig
    transposed = ()
