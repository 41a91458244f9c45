"""Times the parts of a step separately, on rows in the middle of a generation."""

import statistics
import time
from collections.abc import Callable

import torch

from bass.engine.graphs import GraphedStep, capture_stream
from bass.engine.step import SpeculativeStep, Step
from bass.ops.batch_state import clipped, window
from bass.ops.noise import step_noise
from bass.records import Sequences, Window

PARTS = ("draft", "verify", "sample", "host")
REPEATS = 20
LEAST_REPEATS, MOST_SECONDS = 3, 0.25  # of a part on a CPU, where one run may take long


def seconds_of(
    work: Callable[[], object], graphed: bool, before: Callable[[], object] = lambda: None
) -> float:
    """Median time of `work` in seconds.

    before: runs before each repeat, untimed. graphed: `work` runs as a replayed CUDA graph;
    otherwise the time includes the host's launches.
    """
    before()
    work()
    if not graphed:
        return _by_the_clock(work, before)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream()):
        work()
    times = []
    for _ in range(REPEATS):
        before()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def _by_the_clock(work: Callable[[], object], before: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < LEAST_REPEATS or (len(times) < REPEATS and sum(times) < MOST_SECONDS):
        before()
        _wait()
        began = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def without_graphs(step: Step) -> SpeculativeStep | None:
    """The step without its graphs; None for a step of another class, whose parts are unknown."""
    inner = step.inner if isinstance(step, GraphedStep) else step
    return inner if isinstance(inner, SpeculativeStep) else None


@torch.inference_mode()
def parts_of(step: Step, rows: Sequences, k: int) -> dict[str, float]:
    """Seconds of the parts of a step that drafts k tokens for every active row, or up to the row's
    limit.

    draft: the drafter, its sampling included. verify: the target's pass. sample: noise, warp,
    verdict, log-probabilities, commit. host: the wall time of a whole step minus the other parts, 0
    where that is negative: launches and copies.

    Afterwards the rows have their former state, except for tokens after their lengths. The report
    of a step that is still in flight is lost (with a step that overlaps with the host).
    """
    with torch.cuda.device_of(rows.lens):
        return _parts_of(step, rows, k)


def _parts_of(step: Step, rows: Sequences, k: int) -> dict[str, float]:
    inner, graphed = without_graphs(step), isinstance(step, GraphedStep)
    assert inner is not None
    lens, active, steps = rows.lens.clone(), rows.active.clone(), rows.steps.clone()
    assert bool(active.any()), "some row must be active"

    def settle() -> None:
        rows.lens.copy_(lens)
        rows.active.copy_(active)
        rows.steps.copy_(steps)

    lengths = clipped(torch.full_like(lens, k), lens, rows.limits, active)
    k = int(lengths.max())
    span = step.shapes.span(int((lens + lengths)[active].max()), rows.capacity)
    noise = step_noise(rows.keys, rows.steps, rows.lens, k)
    draft, flags = inner.drafted(rows, lengths, k, noise, span)
    fed = Window(*window(rows, draft), span)
    logits = inner.target(fed).logits
    seconds = {
        "draft": seconds_of(lambda: inner.drafted(rows, lengths, k, noise, span), graphed)
        if k
        else 0.0,
        "verify": seconds_of(lambda: inner.target(fed), graphed),
        "sample": seconds_of(
            lambda: inner.judged(
                rows, draft, flags, logits, step_noise(rows.keys, rows.steps, rows.lens, k)
            ),
            graphed,
            settle,
        ),
    }
    on_host = lengths.tolist()
    whole = seconds_of(lambda: step.launch(rows, on_host, k, span)(), graphed=False, before=settle)
    settle()
    inner.log.take()
    return seconds | {"host": max(0.0, whole - sum(seconds.values()))}
