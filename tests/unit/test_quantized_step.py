"""`benchmarks/quantized_step.py` writes checkpoints that are read as quantized, and times them."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bass.checkpoints.quantized.formats import summary
from bass.checkpoints.shards import read_header
from bass.checkpoints.weights import read_index
from bass.ops.quantize import dequantized
from bass.quantization.apply import quantizable
from unit.test_package import ROOT

CPU = torch.device("cpu")
SUMMARIES = {
    "bf16": "",
    "fp8-blocks": "fp8: 14 matrices in e4m3, a scale for blocks of 128 x 128",
    "int4": "compressed-tensors: 14 matrices in int4, a scale for groups of 128",
    "awq": "awq: 14 matrices in int4, a scale for groups of 128",
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setenv("BASS_CPU_PRODUCTS", "torch")  # nothing to compile and to time
        names = ("random_checkpoint", "quantized_step", "write_shapes")
        yield {name: importlib.import_module(name) for name in names}


@pytest.mark.parametrize("method", SUMMARIES)
def test_random_checkpoints_are_read_as_their_method(
    scripts: dict[str, ModuleType], tmp_path: Path, method: str
) -> None:
    random_checkpoint = scripts["random_checkpoint"]
    config = random_checkpoint.shrunk(scripts["write_shapes"].PAIRS["llama"][0], 256, 2)
    size = random_checkpoint.write(tmp_path, config, method, 3)
    assert len([*tmp_path.glob("*.safetensors")]) == 3
    headers = [read_header(path).values() for path in tmp_path.glob("*.safetensors")]
    assert size == sum(tensor.nbytes for held in headers for tensor in held)
    index = read_index(tmp_path)
    assert summary(index.files) == SUMMARIES[method]
    decoder = index.load(CPU, torch.float32)
    with torch.inference_mode():
        for path in quantizable(index.decoder):
            layer = decoder.get_submodule(path)
            x = torch.randn(64, index.decoder.get_submodule(path).weight.shape[1])
            y = layer(x)
            assert 0.8 < float(y.std()) < 1.2, path


def test_random_experts_are_in_mxfp4_as_published(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    random_checkpoint = scripts["random_checkpoint"]
    config = random_checkpoint.shrunk(scripts["write_shapes"].PAIRS["gpt-oss"][0], 128, 2)
    random_checkpoint.write(tmp_path, config, "mxfp4", 2)
    index = read_index(tmp_path)
    found = "mxfp4: 4 matrices in e2m1, a scale for groups of 32"
    assert summary(index.files) == found
    decoder = index.load(CPU, torch.float32)
    for block in decoder.blocks:
        experts = block.mlp.experts
        assert experts.gate_up_scale is not None
        for own in ("gate_up", "down"):
            codes, scale = getattr(experts, own), getattr(experts, f"{own}_scale")
            matrix = dequantized(codes, scale, None, 32, torch.float32)
            assert 0.7 < float(matrix.std()) * matrix.shape[1] ** 0.5 < 1.42, own
    assert not any(p.any() for name, p in decoder.named_parameters() if name.endswith("_bias"))


@pytest.mark.nightly
def test_it_times_each_format_next_to_bfloat16(
    scripts: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--hidden", "128", "--layers", "1", "--device", "cpu", "--new-tokens", "2"]
    sizes += ["--prompt-length", "4", "--repeats", "1"]
    files = ["--folder", str(tmp_path), "--results", str(tmp_path / "results.json")]
    scripts["quantized_step"].main([*sizes, *files, "--formats", "bf16", "awq"])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    settings = [(row["format"], row["method"], row["batch"]) for row in record["rows"]]
    each = [("plain", 1), ("plain", 8), ("k=4", 1)]
    assert settings == [(name, *setting) for name in ("bf16", "awq") for setting in each]
    bf16, awq = record["rows"][0], record["rows"][3]
    assert awq["stored_gb"] < 0.8 * bf16["stored_gb"]
    assert awq["bound_ms_per_token"] < bf16["bound_ms_per_token"]
    assert all(row["wall_ms_per_token"] > row["bound_ms_per_token"] for row in record["rows"])
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
