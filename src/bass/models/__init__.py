"""Decoders, one short file per family, by the `model_type` under which config.json names them."""

from bass.models.codegen import CodeGen
from bass.models.cohere2 import Cohere2
from bass.models.decoder import CausalDecoder
from bass.models.ernie4_5 import Ernie45
from bass.models.exaone4 import Exaone4
from bass.models.falcon import Falcon
from bass.models.gemma2 import Gemma2
from bass.models.gemma3_text import Gemma3Text
from bass.models.glm4 import Glm4
from bass.models.gpt2 import GPT2
from bass.models.gpt_bigcode import GPTBigCode
from bass.models.gpt_neox import GPTNeoX
from bass.models.gpt_oss import GptOss
from bass.models.gptj import GPTJ
from bass.models.granite import Granite
from bass.models.granitemoe import GraniteMoe
from bass.models.granitemoehybrid import GraniteMoeHybrid
from bass.models.hunyuan_v1_dense import HunYuan
from bass.models.llama import Llama
from bass.models.mimo import MiMo
from bass.models.ministral3 import Ministral3
from bass.models.mistral import Ministral, Mistral
from bass.models.mixtral import Mixtral
from bass.models.nemotron import Nemotron
from bass.models.olmo2 import Olmo2
from bass.models.olmo3 import Olmo3
from bass.models.olmoe import Olmoe
from bass.models.opt import OPT
from bass.models.phi import Phi
from bass.models.phi3 import Phi3
from bass.models.qwen2 import Qwen2
from bass.models.qwen3 import Qwen3
from bass.models.qwen3_moe import Qwen3Moe
from bass.models.seed_oss import SeedOss
from bass.models.smollm3 import SmolLM3
from bass.models.stablelm import StableLm
from bass.models.starcoder2 import Starcoder2

FAMILIES: dict[str, type[CausalDecoder]] = {
    family.config_type.model_type: family
    for family in (
        Llama, Mistral, Ministral, Ministral3, Qwen2, Qwen3, Phi3, Gemma2, Gemma3Text, Starcoder2,
        GPT2, GPTBigCode, GPTJ, CodeGen, GPTNeoX, OPT, Mixtral, GptOss, Olmoe, GraniteMoe, Qwen3Moe,
        Phi, Nemotron, StableLm, Olmo2, Olmo3, SmolLM3, Granite, Glm4, Cohere2, SeedOss, Exaone4,
        Ernie45, HunYuan, Falcon, GraniteMoeHybrid, MiMo,
    )
}  # fmt: skip
