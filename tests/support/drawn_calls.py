"""Calls for tests of metrics: the accounts of batched decoding without models, drawn by
Hypothesis.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bass.analysis.frames import measured
from bass.analysis.metrics import Measurement
from bass.api.results import Completion
from bass.engine.cost import Work
from bass.engine.requests import StepRecord

FACTS = {"bandwidth": 1e4, "flops": 1e4, "peak_memory_bytes": 4096}
SECONDS = st.floats(0.001, 10)


@dataclass(frozen=True)
class Drawn:
    """The fields of the steps and of the completions of a call, in order."""

    steps: list[tuple[Any, ...]]
    requests: list[dict[str, Any]]

    def measurement(self, facts: dict[str, Any] | None = None) -> Measurement:
        """What metrics read."""
        completions = [Completion(**one) for one in self.requests]
        steps = [StepRecord(*step) for step in self.steps]
        return measured(steps, completions, FACTS if facts is None else facts)


@dataclass
class _Row:
    """A request on its way."""

    request: int
    target_calls: int
    prefilled: float
    emitted: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def _work(positions: int, drafted: np.ndarray, emitted: np.ndarray) -> Work:
    return Work(1000 + 10 * positions, 100 * int(drafted.sum() + emitted.sum()))


@st.composite
def runs(
    draw: st.DrawFn,
    longest: int = 5,
    same_length: bool = False,
    cuts: bool = True,
    plain: bool = False,
) -> Drawn:
    """A run of a few requests on fewer rows.

    longest: draft; same_length: of every draft; cuts: sequences may end with a drafted token,
    before the bonus; plain: nothing is drafted.
    """
    batch, count = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    waiting = [_Row(i, draw(st.integers(1, 4)), 0.0) for i in range(count)]
    fixed = draw(st.integers(1, longest))
    rows: list[_Row | None] = [None] * batch
    steps, ended, now = [], {}, 0.0
    while waiting or any(rows):
        for b in range(batch):
            if rows[b] is None and waiting:
                rows[b] = waiting.pop(0)
                now += draw(SECONDS)
                rows[b].prefilled = now
        drafted, accepted, emitted, requests = (np.zeros(batch, dtype=np.int64) for _ in range(4))
        requests -= 1
        now += draw(SECONDS)
        host, seconds = draw(st.floats(0, 1)), draw(SECONDS)
        now += host + seconds
        for b, row in enumerate(rows):
            if row is None:
                continue
            requests[b] = row.request
            drafted[b] = 0 if plain else fixed if same_length else draw(st.integers(0, longest))
            accepted[b] = draw(st.integers(0, int(drafted[b])))
            row.target_calls -= 1
            ends = row.target_calls == 0
            cut = ends and cuts and accepted[b] > 0 and draw(st.booleans())
            emitted[b] = accepted[b] + (not cut)
            row.emitted += [int(emitted[b])]
            row.times += [now] * int(emitted[b])
            if ends:
                ended[row.request] = _completion(row, draw)
                rows[b] = None
        k = int(drafted.max())
        positions = int((requests >= 0).sum()) * draw(st.integers(1, k + 64))
        counts = requests, drafted, accepted, emitted
        work = _work(positions, drafted, emitted)
        steps.append((k, *counts, seconds, host, now, None, None, work))
    return Drawn(steps, [ended[request] for request in range(count)])


def _completion(row: _Row, draw: st.DrawFn) -> dict[str, Any]:
    """The request as it finished; a stop string may have cut some of what its last step
    committed.
    """
    length = len(row.times) - draw(st.integers(0, row.emitted[-1] - 1))
    return {
        "prompt_index": row.request,
        "sample_index": 0,
        "text": None,
        "token_ids": draw(st.lists(st.integers(0, 2), min_size=length, max_size=length)),
        "logprobs": [-1.0] * length,
        "finish_reason": "stop" if length < len(row.times) else "eos",
        "seconds": row.times[-1] - row.prefilled,
        "prompt_tokens": 3,
        "prefill_seconds": row.prefilled,
    }


def as_plain(m: Measurement, seconds: float = 2.0) -> Measurement:
    """The same requests decoded one token a step, each step taking `seconds`, at the same batch."""
    steps = m.steps.copy()
    steps["k"], steps["seconds"] = 0, seconds
    steps["drafted"] = steps["accepted"] = [[0] * len(row) for row in steps["requests"]]
    steps["emitted"] = [[int(request >= 0) for request in row] for row in steps["requests"]]
    return replace(m, steps=steps)
