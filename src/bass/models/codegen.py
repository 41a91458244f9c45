"""CodeGen (Nijkamp et al., 2023): GPT-J with fused queries, values and keys in four parts."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.models.config import Assumed
from bass.models.gptj import GPTJ, GPTJConfig
from bass.models.sources import fused_rows

PARTS = 4


@dataclass(frozen=True)
class CodeGenConfig(GPTJConfig):
    """A config.json of `model_type: codegen`."""

    model_type = "codegen"
    architecture = "CodeGenForCausalLM"
    # CodeGen2 has the same `model_type`, but needs its own code.
    assumes: ClassVar[Assumed] = {"auto_map": (None,)}

    @property
    def qkv_rows(self) -> np.ndarray:
        return fused_rows(PARTS, 3 * self.hidden_size, "qvk")[super().qkv_rows]


@final
class CodeGen(GPTJ):
    config_type = CodeGenConfig
    names = GPTJ.names | {"attention.qkv": "attn.qkv_proj"}
