"""`bass info` of layouts that are not ours: what is counted, and what cannot be known."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bass import pair as embedded
from bass.caches import PaddedCache
from bass.checkpoints.weights import save_decoder
from bass.interfaces import KVCache
from bass.models.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from bass.records import AttentionRule, CacheBudget, DecoderShape, PaddedView
from unit.checkpoints import Pair, Said
from unit.stored_quantizations import METHODS, write_quantized

Command = Callable[..., Said]
HERE = __name__


class Around(KVCache[PaddedView]):
    """A layout that wraps another, with a tensor of its own."""

    view_type: ClassVar[type] = PaddedView

    def __init__(self, inner: Any, own: torch.Tensor) -> None:
        self.inner, self.own = inner, own

    @classmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "Around":
        return cls(
            PaddedCache.allocate(shape, budget, device, dtype),
            torch.zeros(5, dtype=torch.int8, device=device),
        )

    def write(self, *_: Any) -> None: ...
    def view(self, layer: int) -> PaddedView: ...  # type: ignore[empty-body]
    def rows(self, start: int, stop: int) -> "Around": ...  # type: ignore[empty-body]
    def reserve(self, assignment: Any) -> None: ...
    def copy_rows(self, assignment: Any) -> None: ...


class Hiding(Around):
    """Its storage is where nothing looks for it."""

    def __init__(self, inner: Any, own: torch.Tensor) -> None:
        self.hidden, self.own = [inner], own


def figure(said: Said, name: str) -> str:
    """What is told of a layout."""
    assert said.status == 0, said.err
    found = re.findall(rf"^  {re.escape(name)} +(.+)$", said.out, re.MULTILINE)
    assert len(found) == 1, said.out
    return found[0]


def test_a_cache_takes_what_the_caches_in_it_take() -> None:
    shape, budget = (
        DecoderShape(5, 64, 1, 16, 64, (AttentionRule(1.0),)),
        CacheBudget.of(np.array([3, 4])),
    )
    cache = Around.allocate(shape, budget, torch.device("cpu"), torch.float32)
    assert cache.nbytes == cache.inner.nbytes + 5
    assert Around(cache, cache.own).nbytes == cache.nbytes + 5


def test_a_layout_around_another_is_told_with_what_it_wraps(
    bass_command: Command, pair: Pair
) -> None:
    own = figure(
        bass_command("info", str(pair.target), "--cache", f"{HERE}:Around"), f"{HERE}:Around"
    )
    assert own == figure(bass_command("info", str(pair.target), "--cache", "padded"), "padded")


def test_less_than_the_rows_need_is_no_figure(bass_command: Command, pair: Pair) -> None:
    told = figure(
        bass_command("info", str(pair.target), "--cache", f"{HERE}:Hiding"), f"{HERE}:Hiding"
    )
    assert told == "unknown (it reports less than the rows need)"


def test_the_rows_of_the_help_are_rows_of_the_embedded_pair(
    bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bass_command("info", "--help")
    found = re.search(r"e\.g\. (\[[\d,\s]+\])", capsys.readouterr().out)
    assert found is not None
    said = bass_command("info", str(embedded.TARGET), "--rows", found[1])
    assert said.status == 0, said.err
    assert f"MiB for {', '.join(map(str, json.loads(found[1])))} positions" in said.out


def test_it_names_the_experts_that_a_step_is_expected_to_read(
    bass_command: Command, tmp_path: Path
) -> None:
    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=16, mlp_only_layers=(1,),
    )  # fmt: skip
    save_decoder(Qwen3Moe(config), tmp_path, torch.float32)
    said = bass_command("info", str(tmp_path))
    assert said.status == 0, said.err
    assert (
        "8 of 128 for each token, in 2 layers; if all choose at random, a step reads 8 and 51.6 at "
        "batch 1 and 8, 35.3 and 118 with 4 drafted tokens (`bass bench` measures it)"
    ) in said.out


@pytest.mark.parametrize("skip", [(), ("gate_proj", "up_proj", "experts.0.down_proj")])
def test_it_says_that_experts_are_dequantized(
    bass_command: Command, tmp_path: Path, skip: tuple[str, ...]
) -> None:
    """Those of the folder: attention alone is quantized if all experts are left out."""
    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=1,
        num_experts_per_tok=1, moe_intermediate_size=32,
    )  # fmt: skip
    decoder = Qwen3Moe(config)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_()
    save_decoder(decoder, tmp_path / "original", torch.float16)
    quantization, store = METHODS["gptq"]
    folder = write_quantized(tmp_path / "original", tmp_path, quantization, store, skip)[0]
    said = bass_command("info", str(folder))
    assert said.status == 0, said.err
    words = "quantized as stored, but for experts: these are dequantized at load\n"
    assert (words in said.out) == (not skip)
    assert "quantized as stored" in said.out
