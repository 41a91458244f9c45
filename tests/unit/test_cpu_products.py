"""How a CPU computes products: the choice, its file, and what a run by kernels emits."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import bass
from bass.kernels.support import Unsupported, cpu_unsupported
from bass.ops import cpu_products, dispatch

needs_kernels = pytest.mark.skipif(
    cpu_unsupported() is not None, reason="the kernels for CPUs do not run here"
)
WEIGHT = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
Choose = Callable[[str | None], None]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Choose:
    """Sets BASS_CPU_PRODUCTS; nothing is chosen yet, and the user's cache folder is empty."""

    def choose(way: str | None) -> None:
        for name in ("_chosen", "_found"):
            monkeypatch.setattr(cpu_products, name, {})
        if way is None:
            monkeypatch.delenv(cpu_products.VARIABLE, raising=False)
        else:
            monkeypatch.setenv(cpu_products.VARIABLE, way)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_products, "busy", lambda: False)
    monkeypatch.setattr(cpu_products, "SECONDS", 60.0)
    choose(None)
    return choose


def stored(folder: Path) -> Path:
    return folder / "bass" / "cpu_products.json"


def ways(rows: int) -> str:
    return cpu_products.chosen(torch.ones(rows, WEIGHT.shape[1]), WEIGHT)


@needs_kernels
@pytest.mark.parametrize("way", cpu_products.WAYS)
@pytest.mark.parametrize("rows", [1, 3, 64, 65, 600])
def test_every_way_computes_the_product(choose: Choose, way: str, rows: int) -> None:
    choose(way)
    cpu_products.measure([WEIGHT])
    assert ways(rows) == way
    x, bias = torch.randn(rows, 256), torch.randn(512)
    for b in (None, bias):
        expected = F.linear(x, WEIGHT, b)
        found = cpu_products.product(x.view(1, rows, 256), WEIGHT, b)[0]
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@needs_kernels
def test_a_gradient_goes_through_torch(choose: Choose) -> None:
    choose("kernel")
    cpu_products.measure([WEIGHT])
    x = torch.randn(2, 256, requires_grad=True)
    cpu_products.product(x, WEIGHT, None).sum().backward()
    assert x.grad is not None


@needs_kernels
def test_what_was_measured_is_measured_once_per_machine(
    choose: Choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cpu_products,
        "_times",
        lambda same, rows: {"kernel": 2.0, "torch": 1.0 if rows == 1 else 3.0},
    )
    cpu_products.measure([WEIGHT, WEIGHT[:, :64]])
    assert (ways(1), ways(2)) == ("torch", "kernel")
    assert cpu_products.in_words() == "numba 8, torch 1 of 9 shapes"
    choose(None)
    monkeypatch.setattr(cpu_products, "_times", lambda same, rows: pytest.fail("measured again"))
    cpu_products.measure([WEIGHT])
    assert (ways(1), ways(2)) == ("torch", "kernel")
    assert len(json.loads(stored(tmp_path).read_text())) == 1


def test_without_numba_torch_computes(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Unsupported("numba is not installed", "install it")
    monkeypatch.setattr(dispatch, "cpu_unsupported", lambda: reason)
    cpu_products.measure([WEIGHT])
    assert ways(1) == "torch"
    assert cpu_products.in_words() == "torch (numba is not installed)"
    assert not cpu_products.fused(torch.ones(1, 256))


@needs_kernels
@pytest.mark.parametrize("drafted", [0, 3])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}])
def test_kernels_emit_torchs_tokens(
    choose: Choose, drafted: int, options: dict[str, float]
) -> None:
    texts = []
    for way in ("torch", "kernel"):
        choose(way)
        llm = bass.load(dtype="float32", device="cpu", num_speculative_tokens=drafted)
        result = llm.generate(
            ["def add(a, b):", "import os\n", "x"], max_new_tokens=12, seed=1, **options
        )
        texts.append([completion.token_ids for completion in result.completions])
    assert texts[0] == texts[1]


def test_numba_is_imported_by_a_load_alone() -> None:
    code = "import sys, bass, bass.cli, bass.ops.linear; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
