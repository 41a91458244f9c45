"""What `bass info` and `bass generate` say about kernels, for devices that are not there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bass.attention import SDPA, TritonPad, TritonRagged
from bass.caches import PaddedCache, SplitCache
from bass.cli import kernels
from bass.models.codegen import CodeGen, CodeGenConfig
from bass.models.decoder import CausalDecoder
from bass.models.gemma3_text import Gemma3Text, Gemma3TextConfig
from bass.models.gpt2 import GPT2, GPT2Config
from bass.models.llama import Llama, LlamaConfig
from bass.models.olmo2 import Olmo2, Olmo2Config
from bass.models.qwen3 import Qwen3, Qwen3Config
from bass.ops.dispatch import Capability, Unsupported
from bass.quantization import QUANTIZATIONS, quantize
from unit.checkpoints import Pair, Said

NO_GPU = Unsupported("`cpu` is no CUDA device", "use one")
NO_HOPPER = Unsupported("`cuda` is no Hopper GPU", "use an H100 or H200")
HOPPER, OTHER, CPU = Capability(None, None), Capability(None, NO_HOPPER), Capability(NO_GPU, NO_GPU)
CUDA = torch.device("cuda")


def setting(capability: Capability = HOPPER, **changed: Any) -> kernels.Setting:
    values = {"dtype": torch.bfloat16, "cache": SplitCache, "attention": TritonRagged()}
    return kernels.Setting(capability, **values | changed)


def llama(dim: int = 64) -> Llama:
    return Llama(LlamaConfig(32, 2 * dim, 64, 1, 2, 1, dim, 16), dtype=torch.bfloat16)


def no(decoder: CausalDecoder, where: kernels.Setting) -> dict[str, str]:
    return {part: why for part, why in kernels.by_part(decoder, where).items() if why}


def test_llama_runs_by_kernels_throughout_on_hopper() -> None:
    assert no(llama(), setting()) == {}
    assert kernels.in_short(llama(), setting()) == "all"
    assert kernels.lines(llama(), setting(), CUDA)[0].split() == (
        ["kernels", "on", "cuda,", "bfloat16,", "`split`", "cache"]
    )


@pytest.mark.parametrize("decoder", [llama(), GPT2(GPT2Config(32, 16, 8, 1, 2))])
def test_a_device_without_kernels_is_one_line(decoder: CausalDecoder) -> None:
    where = setting(CPU)
    assert kernels.lines(decoder, where, torch.device("cpu")) == [
        f"{'kernels':20}off: `cpu` is no CUDA device"
    ]
    assert kernels.in_short(decoder, where) == "off (`cpu` is no CUDA device)"


def test_float64_has_no_kernels() -> None:
    assert kernels.in_short(llama(), setting(dtype=torch.float64)) == (
        "off (no kernel computes in float64)"
    )


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (setting(OTHER), "`cuda` is no Hopper GPU"),
        (setting(dtype=torch.float16), "the model computes in float16, not bfloat16"),
        (
            setting(cache=PaddedCache, attention=TritonPad()),
            "the cache is `padded`, not `split`",
        ),
    ],
)
def test_the_fused_path_names_what_is_against_it(where: kernels.Setting, reason: str) -> None:
    assert no(llama(), where) == {kernels.FUSED: reason}


def test_the_fused_path_needs_whole_weights_and_heads_of_a_known_size() -> None:
    reason = "heads have 32 dimensions, not 64, 128 or 256"
    assert no(llama(32), setting()) == {kernels.FUSED: reason}
    quantized = llama()
    quantize(quantized, QUANTIZATIONS["int8"]())
    assert no(quantized, setting()) == {kernels.FUSED: "weights are quantized"}


def test_a_backend_of_torchs_is_named() -> None:
    reasons = no(llama(), setting(cache=PaddedCache, attention=SDPA()))
    assert reasons["attention"] == "backend `SDPA` uses no kernel of bass"


@pytest.mark.parametrize(
    "decoder",
    [
        GPT2(GPT2Config(32, 16, 64, 1, 1)),
        Qwen3(Qwen3Config(32, 64, 64, 1, 2, 1, 64)),
        CodeGen(CodeGenConfig(32, 16, 512, 1, 4)),
    ],
    ids=lambda decoder: type(decoder).__name__,
)
def test_layer_norms_norms_of_heads_and_parallel_blocks_are_fused(decoder: CausalDecoder) -> None:
    assert no(decoder, setting()) == {}


def test_a_block_and_an_activation_without_kernels_are_named() -> None:
    gemma = no(Gemma3Text(Gemma3TextConfig(32, 32, 64, 1, 2, 1, 64)), setting())
    assert gemma == {kernels.FUSED: "the block is `SandwichNorm`, not `PreNorm` or `Parallel`"}
    decoder: Any = llama()
    decoder.blocks[0].mlp.act = torch.tanh
    assert no(decoder, setting())["activations"] == "no kernel computes `tanh`"


def test_a_norm_over_all_heads_is_named() -> None:
    reasons = no(Olmo2(Olmo2Config(32, 32, 64, 1, 2, 1, 64)), setting())
    assert reasons["norms"] == "no kernel computes a norm over all heads"
    assert reasons[kernels.FUSED].startswith("the block is `ReorderedNorm`")
    assert reasons.keys() == {"norms", kernels.FUSED}


def test_a_layer_and_a_norm_of_ones_own_are_named() -> None:
    class OwnNorm(torch.nn.Module): ...

    class OwnLayer(torch.nn.Module): ...

    decoder: Any = llama()
    decoder.blocks[0].mlp_norm = OwnNorm()
    decoder.blocks[0].mlp.down = OwnLayer()
    reasons = no(decoder, setting())
    assert reasons["norms"] == "no kernel computes `OwnNorm`"
    assert reasons["products"] == reasons[kernels.FUSED] == "no kernel computes `OwnLayer`"


def test_info_and_generate_say_it(
    bass_command: Callable[..., Said], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = bass_command("info", str(pair.target))
    assert f"{'kernels':20}off: `cpu` is no CUDA device\n" in said.out
    said = bass_command(
        "generate", "def", "--target", str(pair.target), "--draft", str(pair.draft),
        "--max-new-tokens", "2",
    )  # fmt: skip
    assert "kernels: off (`cpu` is no CUDA device)" in " ".join(said.err.split())
