"""What is not read is named with its method, also where config.json does not say it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bass
from bass.checkpoints.weights import load_decoder, read_index
from bass.errors import CheckpointError, OptionError
from unit.checkpoints import Said
from unit.stored_quantizations import GPTQ4, METHODS, compressed, write_quantized
from unit.test_stored_quantizations import original

NVFP4 = compressed({"num_bits": 4, "type": "float"}, "nvfp4-pack-quantized")
UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by `bitsandbytes`"),
    "no method": (
        {"quant_algo": "FP8", "producer": {"name": "modelopt"}, "kv_cache_quant_algo": None},
        "has a `quantization_config` without `quant_method`, of `quant_algo='FP8'`, `producer=",
    ),
    "gptq of 3 bits": (GPTQ4 | {"bits": 3}, r"by gptq in a form .*: `bits=3` is none of \[4, 8\]"),
    "nvfp4": (NVFP4, "by compressed-tensors in a form .*: `format='nvfp4-pack-quantized'`"),
    "other tensors": (METHODS["awq"][0], r"has scales of \[\d, \d+\] instead of \[1, 512\]"),
}


@pytest.fixture
def gptq(tmp_path: Path) -> Path:
    return write_quantized(original(tmp_path), tmp_path, *METHODS["gptq"])[0]


def changed(folder: Path, **fields: Any) -> Path:
    """Fields of its config.json; None removes one."""
    raw = json.loads((folder / "config.json").read_bytes()) | fields
    raw = {name: value for name, value in raw.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize("name", UNREAD)
def test_a_quantization_that_is_not_read_is_named(name: str, gptq: Path) -> None:
    config, says = UNREAD[name]
    with pytest.raises(CheckpointError, match=says):
        read_index(changed(gptq, quantization_config=config))


def test_a_separate_file_of_gptq_is_read(gptq: Path) -> None:
    expected = load_decoder(gptq, torch.device("cpu"), torch.float32)
    changed(gptq, quantization_config=None)
    separate = {name: value for name, value in GPTQ4.items() if name != "quant_method"}
    (gptq / "quantize_config.json").write_text(json.dumps(separate))
    found = load_decoder(gptq, torch.device("cpu"), torch.float32)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)


def test_quantized_tensors_without_a_quantization_config_are_an_error(gptq: Path) -> None:
    with pytest.raises(CheckpointError, match=r"14 missing .* 42 unexpected .*\.qweight"):
        read_index(changed(gptq, quantization_config=None))


def test_a_second_quantization_is_an_error_and_none_is_not(gptq: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_speculative_tokens": 2, "device": "cpu"}
    with pytest.raises(
        OptionError, match="already quantized by gptq: leave out `quantization`, or give `none`"
    ):
        bass.load(gptq, gptq, quantization="int8", **options)
    bass.load(gptq, gptq, quantization="none", **options)
    target = tmp_path / "original"
    bass.load(target, gptq, quantization="int8", draft_quantization="none", **options)


def test_info_names_method_and_bits(bass_command: Callable[..., Said], gptq: Path) -> None:
    [found] = bass_command("info", str(gptq), "--json").lines[0]["checkpoints"]
    assert found["quantization"] == "gptq: 14 matrices in int4, a scale for groups of 32"
    assert "MiB in float16, quantized as stored" in found["weights"]
