"""GPT-J (Wang and Komatsuzaki, 2021): rotary embedding on a part of each head, in adjacent pairs;
parallel attention and MLP.
"""

from dataclasses import dataclass
from typing import final

from bass.models.config import SharedNormConfig
from bass.models.decoder import SharedNormDecoder


@dataclass(frozen=True)
class GPTJConfig(SharedNormConfig):
    """A config.json of `model_type: gptj`."""

    model_type = "gptj"
    architecture = "GPTJForCausalLM"


@final
class GPTJ(SharedNormDecoder):
    """A decoder of the GPT-J family."""

    config_type = GPTJConfig
