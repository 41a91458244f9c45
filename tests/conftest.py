"""Everything in `bass` runs under its own type and shape annotations here: jaxtyping's import hook,
checked by beartype.

See `support.typecheck` for how often.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from support import typecheck

if os.environ.get("BASS_TEST_DEVICE", "cpu") != "cuda":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

# no measurement decides what a test computes; tests of the kernels choose them
os.environ.setdefault("BASS_CPU_PRODUCTS", "torch")

jaxtyping.jaxtyped = typecheck.jaxtyped  # which is what the hook puts around everything
_hook = jaxtyping.install_import_hook("bass", "support.typecheck.check")  # found by name

import bass  # noqa: E402  (after the hook)
from bass.caches import paged  # noqa: E402
from bass.engine import prefill, shapes, step_times  # noqa: E402
from support import interpreter, matrix  # noqa: E402  (imports triton)

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))  # the tensors are small
torch.set_num_threads(THREADS)
interpreter.hasten()

# ignored by a job in the background, and under nohup
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

_common = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=20, **_common)
settings.register_profile("ci", max_examples=15, derandomize=True, database=None, **_common)
settings.register_profile("nightly", max_examples=1500, print_blob=True, **_common)
settings.register_profile(
    "mutants", settings.get_profile("ci"), max_examples=60, phases=(Phase.explicit, Phase.generate)
)  # a kill needs no shrinking
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# set by the mutants' runner: a mutant that is not imported proves nothing
if "BASS_EXPECTED_SOURCE" in os.environ:
    _imported = Path(bass.__file__).resolve()
    assert _imported.is_relative_to(Path(os.environ["BASS_EXPECTED_SOURCE"]).resolve()), (
        f"`bass` was imported from {_imported}"
    )


@pytest.fixture(scope="session", autouse=True)
def step_times_by_formula(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Policies that read step times get the same ones in every test, and none of the user's."""

    def line(self: step_times.StepTimes, engine: Any, drafter: int) -> list[float]:
        return [1 + 0.1 * k for k in range(self.parts.policy.max_length + 1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(step_times.StepTimes, "measured", line)
        patch.setattr(step_times.StepTimes, "caught_up", lambda *_: 0.1)
        patch.setattr(step_times.StepTimes, "token", lambda *_: 0.05)
        patch.setattr(step_times, "ALONE", 0.0)
        yield


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the laws are tried: `BASS_TEST_DEVICE=cuda` runs them on a GPU."""
    return torch.device(os.environ.get("BASS_TEST_DEVICE", "cpu"))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the hook that checks types and shapes, as outside the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans, windows and chunks of prefills, and blocks of a few tokens, so that short test
    sequences cross their edges.
    """
    monkeypatch.setattr(paged, "BLOCK", 2)
    monkeypatch.setattr(shapes, "SPAN_STEP", 4)
    monkeypatch.setattr(shapes, "LEAST_SPAN", 8)
    monkeypatch.setattr(shapes, "SHORT_SPAN", 8)
    monkeypatch.setattr(prefill, "PREFILL_WINDOW", 3)
    monkeypatch.setattr(prefill, "PREFILL_TOKENS", 3)
    monkeypatch.setattr(prefill, "CHUNK_TOKENS", {"cpu": 4, "cuda": 4})
    monkeypatch.setattr(prefill, "SEGMENT", 2)
    monkeypatch.setattr(prefill, "SEGMENTS", (3, 1))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test function is checked as if it were the only one, in as many threads as the others:
    one that leaves more (a benchmark's `--threads`) makes those after it up to forty times slower
    on busy cores.
    """
    torch.set_num_threads(THREADS)
    typecheck.begin(item.nodeid.partition("[")[0])


def pytest_configure(config: pytest.Config) -> None:
    """Without `-m`, the slow tiers and those that need a GPU are left out."""
    if os.environ.get("BASS_TEST_GRAPHS", "0") not in ("0", "1"):
        raise pytest.UsageError(
            f"BASS_TEST_GRAPHS={os.environ['BASS_TEST_GRAPHS']} must be 0 or 1."
        )
    if os.environ.get("BASS_TEST_GRAPHS") == "1" and os.environ.get("BASS_TEST_DEVICE") != "cuda":
        raise pytest.UsageError(
            "BASS_TEST_GRAPHS=1 needs BASS_TEST_DEVICE=cuda: only a CUDA device has graphs."
        )
    if not config.option.markexpr:
        config.option.markexpr = "not nightly and not gpu"
    # to make ten thousand cases and leave them out takes seconds
    matrix.made_for_the_night = "not nightly" not in config.option.markexpr


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look at
    it, and looks seldom at the rest.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
