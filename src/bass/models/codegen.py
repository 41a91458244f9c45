"""CodeGen (Nijkamp et al., 2023): GPT-J with fused queries, values and keys in four parts."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from bass.errors import CheckpointError
from bass.models.config import FamilyConfig
from bass.models.config_gpt import SharedNormConfig
from bass.models.decoder import SharedNormDecoder
from bass.models.rope import pair_order
from bass.models.sources import WeightSource, fused_rows, head_rows, shared_norm_sources

PARTS = 4


@dataclass(frozen=True)
class CodeGenConfig(SharedNormConfig):
    """A config.json of `model_type: codegen`."""

    model_type: ClassVar[str] = "codegen"
    architecture: ClassVar[str] = "CodeGenForCausalLM"
    # CodeGen2 has the same `model_type`, but needs its own code.
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = SharedNormConfig.assumes | {"auto_map": (None,)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_head % PARTS:
            raise CheckpointError(
                f"config.json has {self.n_head} heads: CodeGen stores them in {PARTS} equal parts."
            )


@final
class CodeGen(SharedNormDecoder):
    """A decoder of the CodeGen family."""

    config_type: ClassVar[type[FamilyConfig]] = CodeGenConfig

    @classmethod
    def sources(cls, config: CodeGenConfig) -> dict[str, WeightSource]:
        c = config
        rows = head_rows(pair_order(c.head_dim, c.rotary_dim, interleaved=True), c.n_head, c.n_head)
        return shared_norm_sources(c, ["qkv_proj"], fused_rows(PARTS, 3 * c.n_embd, "qvk")[rows])
