"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, weights stored [in, out]."""

from dataclasses import dataclass, replace
from typing import final

from bass.models.config import GPTConfig
from bass.models.decoder import GPTDecoder
from bass.models.sources import WeightSource
from bass.records import AttentionRule


@dataclass(frozen=True)
class GPT2Config(GPTConfig):
    """A config.json of `model_type: gpt2`."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        by_layer = self.scale_attn_by_inverse_layer_idx
        return tuple(
            AttentionRule(scale / (layer + 1 if by_layer else 1)) for layer in range(self.n_layer)
        )


@final
class GPT2(GPTDecoder):
    """A decoder of the GPT-2 family."""

    config_type = GPT2Config

    @classmethod
    def sources(cls, config: GPT2Config) -> dict[str, WeightSource]:
        matrices = (".qkv.weight", ".out.weight", ".up.weight", ".down.weight")
        return {
            name: replace(source, transposed=True) if name.endswith(matrices) else source
            for name, source in super().sources(config).items()
        }
