"""Decoders, one short file per family, by the `model_type` under which config.json names them."""

from bass.models.decoder import CausalDecoder
from bass.models.gpt2 import GPT2
from bass.models.llama import Llama
from bass.models.mistral import Mistral

FAMILIES: dict[str, type[CausalDecoder]] = {family.config_type.model_type: family for family in (Llama, Mistral, GPT2)}
