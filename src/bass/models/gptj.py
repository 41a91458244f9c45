"""GPT-J (Wang and Komatsuzaki, 2021): rotary embedding on a part of each head, in adjacent pairs;
parallel attention and MLP.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.models.config import FamilyConfig
from bass.models.config_gpt import SharedNormConfig
from bass.models.decoder import SharedNormDecoder
from bass.models.rope import pair_order
from bass.models.sources import WeightSource, head_rows, shared_norm_sources


@dataclass(frozen=True)
class GPTJConfig(SharedNormConfig):
    """A config.json of `model_type: gptj`."""

    model_type: ClassVar[str] = "gptj"
    architecture: ClassVar[str] = "GPTJForCausalLM"


@final
class GPTJ(SharedNormDecoder):
    """A decoder of the GPT-J family."""

    config_type: ClassVar[type[FamilyConfig]] = GPTJConfig

    @classmethod
    def sources(cls, config: GPTJConfig) -> dict[str, WeightSource]:
        c = config
        rows = head_rows(pair_order(c.head_dim, c.rotary_dim, interleaved=True), c.n_head, c.n_head)
        return shared_norm_sources(c, ("q_proj", "k_proj", "v_proj"), rows)
