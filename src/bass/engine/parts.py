"""Times the parts of a step separately, on rows in the middle of a generation."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from bass.engine.cost import timed
from bass.engine.graphs import GraphedStep, capture_stream
from bass.engine.step import SpeculativeStep, Step
from bass.interfaces import Scorer
from bass.ops.batch_state import last, window
from bass.ops.noise import step_noise
from bass.records import Observation, Sequences, Window

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
    times: list[float] = []
    if not graphed:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        while len(times) < LEAST_REPEATS or (len(times) < REPEATS and sum(times) < MOST_SECONDS):
            before()
            times.append(timed(work, device))
        return statistics.median(times)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream()):
        work()
    for _ in range(REPEATS):
        before()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def without_graphs(step: Step) -> SpeculativeStep:
    """The step without its graphs."""
    inner: Any = step.inner if isinstance(step, GraphedStep) else step
    return inner


def _observed(target: Scorer, rows: Sequences, k: int, span: int) -> Observation:
    """What a step says that committed all of its k drafted tokens, at the end of the rows."""
    tokens, positions = last(rows, k + 2)
    committed = Window(tokens[:, :-1].contiguous(), positions[:, :-1].contiguous(), span)
    following, accepted = tokens[:, 1:].contiguous(), torch.full_like(rows.lens, k)
    return Observation(committed, following, target(committed).features, accepted)


@torch.inference_mode()
def parts_at(step: Step, rows: Sequences, k: int, length: int) -> dict[str, float]:
    """Milliseconds of the parts of a step of k drafted tokens, all rows at `length` tokens.
    Afterwards no row is active.

    draft_ms: the drafter, its sampling included. verify_ms: the target's pass. sample_ms: noise,
    warp, verdict, log-probabilities, commit. observe_ms: what the drafter makes of the target's
    states, if it reads them.
    """
    inner, graphed = without_graphs(step), isinstance(step, GraphedStep)
    length = min(length, rows.capacity - k - 1)

    def settle() -> None:
        rows.lens.fill_(length)
        rows.limits.fill_(rows.capacity)
        rows.active.fill_(True)

    def judge() -> None:
        noise = step_noise(rows.keys, rows.steps, rows.lens, k)
        inner.judged(rows, draft, flags, logits, noise)

    with torch.cuda.device_of(rows.lens):
        settle()
        lengths, span = torch.full_like(rows.lens, k), step.shapes.span(length + k, rows.capacity)
        noise = step_noise(rows.keys, rows.steps, rows.lens, k)
        seen = _observed(inner.target, rows, k, span) if inner.drafter.observes else None
        if seen is not None:  # a head drafts from the state of the last token but one
            inner.drafter.observe(seen)
        draft, flags = inner.drafted(rows, lengths, k, noise, span)
        fed = Window(*window(rows, draft), span)
        logits = inner.target(fed).logits
        drafting = seconds_of(lambda: inner.drafted(rows, lengths, k, noise, span), graphed)
        seconds = {
            "draft_ms": drafting if k else 0.0,
            "verify_ms": seconds_of(lambda: inner.target(fed), graphed),
            "sample_ms": seconds_of(judge, graphed, settle),
        }
        if seen is not None:
            seconds["observe_ms"] = seconds_of(lambda: inner.drafter.observe(seen), graphed)
    rows.active.fill_(False)
    inner.log.take()
    return {name: 1e3 * value for name, value in seconds.items()}
