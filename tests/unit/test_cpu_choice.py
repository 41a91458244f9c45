"""What computes on a CPU: kernels or torch, and what a run by kernels emits."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import bass
from bass.errors import OptionError
from bass.kernels.support import Unsupported, cpu_unsupported
from bass.ops import dispatch
from bass.ops.linear import dense

needs_kernels = pytest.mark.skipif(
    cpu_unsupported() is not None, reason="the kernels for CPUs do not run here"
)
WEIGHT = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen yet."""
    monkeypatch.setattr(dispatch, "_cpu", [])
    monkeypatch.delenv(dispatch.VARIABLE)


@needs_kernels
@pytest.mark.parametrize("way", [None, "kernel", "torch"])
@pytest.mark.parametrize("rows", [1, 3, 64, 65, 600])
def test_every_way_computes_the_product(
    monkeypatch: pytest.MonkeyPatch, way: str | None, rows: int
) -> None:
    if way is not None:
        monkeypatch.setenv(dispatch.VARIABLE, way)
    dispatch.load_cpu_kernels()
    words = "torch" if way == "torch" else "numba"
    assert dispatch.cpu_kernels_in_words() == words
    x, bias = torch.randn(rows, 256), torch.randn(512)
    for b in (None, bias):
        expected = F.linear(x, WEIGHT, b)
        found = dense(x.view(1, rows, 256), WEIGHT, b)[0]
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@needs_kernels
def test_a_gradient_goes_through_torch() -> None:
    dispatch.load_cpu_kernels()
    x = torch.randn(2, 256, requires_grad=True)
    dense(x, WEIGHT, None).sum().backward()
    assert x.grad is not None


def test_an_unknown_way_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    with pytest.raises(OptionError, match="`BASS_CPU_PRODUCTS=fast` is unknown: give kernel or"):
        dispatch.load_cpu_kernels()


def test_without_numba_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Unsupported("numba is not installed", "install it")
    monkeypatch.setattr(dispatch, "cpu_unsupported", lambda: reason)
    dispatch.load_cpu_kernels()
    assert dispatch.cpu_kernels_in_words() == "torch (numba is not installed)"
    assert dispatch.cpu_kernels(WEIGHT) is None


@needs_kernels
@pytest.mark.parametrize("drafted", [0, 3])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}])
def test_kernels_emit_torchs_tokens(
    monkeypatch: pytest.MonkeyPatch, drafted: int, options: dict[str, float]
) -> None:
    texts = []
    for way in ("torch", "kernel"):
        monkeypatch.setenv(dispatch.VARIABLE, way)
        llm = bass.load(dtype="float32", device="cpu", num_speculative_tokens=drafted)
        result = llm.generate(
            ["def add(a, b):", "import os\n", "x"], max_new_tokens=12, seed=1, **options
        )
        texts.append([completion.token_ids for completion in result.completions])
    assert texts[0] == texts[1]


def test_numba_is_imported_by_a_load_alone() -> None:
    code = "import sys, bass, bass.cli, bass.ops.linear; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


SMALL_TEAM = """
import torch
from bass.kernels import cpu
x, w = torch.randn(2, 512), torch.randn(300, 512)
torch.set_num_threads(4)
assert torch.get_num_threads() == 4
assert torch.allclose(cpu.gemm.product(x, w, None), x @ w.T, atol=1e-3)
"""


def test_a_region_with_fewer_threads_than_asked_for_computes_all() -> None:
    environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", SMALL_TEAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
