"""`benchmarks/rounding.py` finds where greedy texts part, and how near the logits are there."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from unit.test_package import ROOT, TRAINED

SMALL = ["--hidden", "128", "--layers", "2", "--vocabulary", "300", "--device", "cpu"]


@pytest.fixture(scope="module")
def rounding() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setenv("BASS_CPU_PRODUCTS", "torch")  # nothing to compile and to time
        yield importlib.import_module("rounding")


def run(rounding: ModuleType, monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    monkeypatch.setattr("sys.argv", ["rounding", *SMALL, *argv])
    rounding.main()


@pytest.mark.nightly
def test_in_float32_texts_are_those_of_autoregressive_decoding(
    rounding: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "rounding.json"
    names = ["qwen3", *(["pair"] if TRAINED else [])]
    sizes = ["--prompts", "2", "--new-tokens", "16", "--batches", "2", "--rows"]
    options = ["--dtype", "float32", "--results", str(file)]
    run(rounding, monkeypatch, "--families", *names, *sizes, *options)
    printed = capsys.readouterr().out.splitlines()
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert json.loads(printed[-1])["results"] == results
    assert len(results) == len(names)
    for name, found in zip(names, results.values(), strict=True):
        assert sum(line.startswith(f"| {name} |") for line in printed) == 4
        for one in found["texts"]:
            assert (one["exact"], one["first_divergence"], one["per_1000"]) == (1.0, None, 0.0)
            assert one["tau"] > 1.5
        for one in found["rows"]:
            assert one["tokens"] == rounding.WINDOWS * (one["k"] + 1) * one["batch"]
            assert one["equal_argmax"] == 1.0
            assert one["largest_ulp"] < 100  # of float32


def test_a_divergence_is_found_with_the_two_largest_logits_there(
    rounding: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four texts one parts at its third token, where it has the second most probable one."""
    monkeypatch.setattr(
        "sys.argv", ["rounding", *SMALL, "--dtype", "float32", "--prompts", "4", "--lengths", "2"]
    )
    arguments = rounding.parse()
    llm, prompts = rounding.loaded("llama", arguments)
    options = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    expected = [[*one.token_ids] for one in llm.generate(prompts, **options).completions]
    probe = rounding.Probe.of(llm, 1, len(prompts[0]) + 8)
    prefix = prompts[1] + expected[1][:2]
    tokens = torch.tensor([prefix])
    with torch.inference_mode():
        probe.fill(tokens, 0)
        logits = probe.logits(tokens, 0)[0, -1]
    (first, second), (best, other) = (values.tolist() for values in logits.topk(2))
    assert best == expected[1][2]
    found = [[*text] for text in expected]
    found[1] = [*found[1][:2], other, *found[1][2:-1]]
    result = rounding.compare(probe, prompts, expected, found)
    assert (result["exact"], result["first_divergence"], result["two"]) == (0.75, 2, 1.0)
    assert result["per_1000"] == pytest.approx(1000 / (3 * 8 + 3))
    assert result["gap"] == pytest.approx(first - second, abs=1e-4)
    ulp = rounding.spacing(first, torch.float32)
    assert result["largest_gap_ulp"] == pytest.approx(result["gap"] / ulp, rel=1e-3)
