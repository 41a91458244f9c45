"""Benchmarks report bad options before they write or measure anything, and what `policies.py` makes
of trims and of recorded texts.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from unit.test_package import ROOT

NOWHERE = "/nonexistent/x"
# of each benchmark: an option with a wrong value
WRONG: dict[str, tuple[str, ...]] = {
    "attention": ("--contexts", "0"),
    "cold_start": ("--hidden", "7"),
    "cpu_pair": ("--temperature", "nan"),
    "default_policy": ("--acceptances", "1.5"),
    "families": ("--families", "nope"),
    "fused_attention": ("--keys", "600"),
    "gpu_pair": ("--results", NOWHERE),
    "gpu_step": ("--methods", "nope"),
    "launches": ("--links", "-1"),
    "load": ("--folder", NOWHERE),
    "paper": ("--device", "cpu"),
    "peers.llama_cpp": ("--threads", "0"),
    "peers.transformers": ("--batches", "0"),
    "peers.vllm": ("--batch", "0"),
    "policies": ("--acceptances", "1.5"),
    "quality": ("--target", NOWHERE),
    "quantized_step": ("--device", "cpu", "--formats", "mxfp4"),
    "recorded_calls": ("x", "--seeds", "0"),
    "ragged": ("--own", "-1", "1"),
    "rounding": ("--dtype", "nope"),
    "write_shapes": ("--nope",),
}
NEED_CUDA = ("attention", "cold_start", "families", "gpu_pair", "gpu_step", "quantized_step")


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Path]:
    """Their folder, from which they import each other; on a machine without a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield ROOT / "benchmarks"


def test_every_benchmark_is_tried(benchmarks: Path) -> None:
    ends = 'if __name__ == "__main__":'
    scripts = [path for path in benchmarks.rglob("*.py") if ends in path.read_text("utf-8")]
    found = {".".join(path.relative_to(benchmarks).with_suffix("").parts) for path in scripts}
    assert found == set(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_option_is_one_sentence(
    benchmarks: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(name)
    for words in (WRONG[name], *(((),) if name in NEED_CUDA else ())):
        with pytest.raises(SystemExit) as ended:
            getattr(script, "parse", script.main)([*words])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1), printed.err


@pytest.mark.parametrize("name", ["cpu_pair", "quality"])
def test_data_that_is_not_there_is_a_sentence(
    benchmarks: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = importlib.import_module(name)
    monkeypatch.setenv("BASS_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no HumanEval\.jsonl\.gz: set BASS_DATA"):
        script.main([])


def test_a_trim_costs_what_it_has_verified_and_recorded_texts_are_a_source(
    benchmarks: Path, tmp_path: Path
) -> None:
    script = importlib.import_module("policies")
    cost, k = script.CostModel(per_token=0.5), script.TRIMMED
    seconds = script.Trimmed(script.Survival(), cost).seconds
    whole, none = cost.step(3, k) / 1000, (cost.step(3, 0) + k * cost.draft(3)) / 1000
    assert seconds(np.full((2, 3), k)) == pytest.approx(whole)
    assert seconds(np.zeros((2, 3))) == pytest.approx(none)
    assert seconds(np.array([k, 0, k // 2])) == pytest.approx((whole + none) / 2)

    # all drafted tokens are accepted, or none, so that a trim learns to keep all, or none
    file = tmp_path / "recorded.json"
    texts = {"0": [[True] * script.NEW] * 3, "1": [[False] * script.NEW] * 3}
    file.write_text(json.dumps({"accepted": texts}), encoding="utf-8")
    arguments = script.parse(["--recorded", str(file)])
    accepted, rejected = (source(3) for source in script.sources(arguments, cost, {}).values())
    best = [bounds["best k"] for _, bounds in (accepted, rejected)]
    assert best == [script.NEW // 8 - 1, 0]  # 8 steps of 16 tokens each
    assert accepted[1]["best of each step"] <= accepted[1]["best"]
    trimmed, fixed = (accepted[0][name] for name in (f"k={k}, threshold", f"k={k}"))
    assert fixed == pytest.approx(trimmed, rel=0.15)
    trimmed, fixed = (rejected[0][name] for name in (f"k={k}, threshold", f"k={k}"))
    assert trimmed < 0.8 * fixed
    with pytest.raises(SystemExit, match="Only 3 texts are recorded"):
        next(iter(script.sources(arguments, cost, {}).values()))(4)
