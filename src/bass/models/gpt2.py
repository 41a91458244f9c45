"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, weights stored [in, out]."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from bass.models.config import FamilyConfig, GPTConfig
from bass.models.decoder import GPTDecoder
from bass.models.sources import Source, gpt_sources
from bass.records import AttentionRule


@dataclass(frozen=True)
class GPT2Config(GPTConfig):
    """A config.json of `model_type: gpt2`."""

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = GPTConfig.assumes | {"scale_attn_weights": (True,)}
    scale_attn_by_inverse_layer_idx: bool = False

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        by_layer = self.scale_attn_by_inverse_layer_idx
        return tuple(AttentionRule(self.head_dim**-0.5 / (layer + 1 if by_layer else 1)) for layer in range(self.n_layer))


@final
class GPT2(GPTDecoder):
    """A decoder of the GPT-2 family."""

    config_type: ClassVar[type[FamilyConfig]] = GPT2Config

    @classmethod
    def sources(cls, config: GPT2Config) -> dict[str, Source]:
        matrices = (".qkv.weight", ".out.weight", ".up.weight", ".down.weight")
        return {
            name: replace(source, transposed=True) if name.endswith(matrices) else source for name, source in gpt_sources(config).items()
        }
