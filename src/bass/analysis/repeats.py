"""The input of metrics: a generation of a cell, and the one that it is compared with."""

import functools
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int

from bass.api.results import Counts, count, judged_lengths
from bass.engine.requests import StepRecord
from bass.errors import OptionError, RunFolderError
from bass.runs.records import Facts, RequestLine
from bass.runs.run_folder import CellLines
from bass.runs.settings import NO_LIMITS, Limits


@final
@dataclass(frozen=True)
class Rows:
    """The active rows of all steps: one entry per target call, with its request and its counts."""

    requests: Int[np.ndarray, " calls"]
    drafted: Int[np.ndarray, " calls"]
    judged: Int[np.ndarray, " calls"]  # see `bass.api.results.judged_lengths`
    accepted: Int[np.ndarray, " calls"]
    emitted: Int[np.ndarray, " calls"]


@final
@dataclass(frozen=True)
class Repeat:
    """One generation of a cell; a repeat of the cell has one, or one for each prompt.

    `plain`: autoregressive decoding of the same requests at the same batch, for metrics that
    compare. `facts`: for MFU, MBU and memory. `limits`: for goodput. Without one of them, the
    metrics that need it are left out.
    """

    steps: list[StepRecord]
    requests: list[RequestLine]
    facts: Facts | None = None
    plain: "Repeat | None" = None
    limits: Limits = NO_LIMITS

    def __post_init__(self) -> None:
        if self.plain is None or not self.steps or not self.plain.steps:
            return
        if self.plain.counts.drafted:
            raise OptionError(
                f"A repeat cannot be compared with one that drafted {self.plain.counts.drafted} "
                "tokens: give one of autoregressive decoding."
            )
        if self.batch != self.plain.batch:
            raise OptionError(
                f"A repeat at batch {self.batch} cannot be compared with autoregressive decoding "
                f"at batch {self.plain.batch}: use the same batch."
            )

    @property
    def batch(self) -> int:
        """Rows of a step, idle ones included."""
        return len(self.steps[0].requests)

    @functools.cached_property
    def counts(self) -> Counts:
        """The counts over all steps."""
        return count(self.steps)

    @functools.cached_property
    def rows(self) -> Rows:
        """The active rows of all steps."""

        def of(values: list[np.ndarray]) -> Int[np.ndarray, " calls"]:
            return (
                np.concatenate([v[s.active] for v, s in zip(values, self.steps, strict=True)])
                if values
                else np.zeros(0, dtype=np.int64)
            )

        steps = self.steps
        return Rows(
            of([s.requests for s in steps]),
            of([s.drafted for s in steps]),
            of([judged_lengths(s) for s in steps]),
            of([s.accepted for s in steps]),
            of([s.emitted for s in steps]),
        )

    @property
    def tokens(self) -> int:
        """Tokens of all requests, without those after a stop string."""
        return sum(len(line.tokens) for line in self.requests)

    @property
    def prefills(self) -> list[float]:
        """When the prefills of the requests with a row ended."""
        return [t for line in self.requests if (t := line.prefill_seconds) is not None]

    @property
    def seconds(self) -> float:
        """From the start to the last token, with prefills, without captures and warm-up."""
        return max(
            [s.at for s in self.steps[-1:]] + [line.ended for line in self.requests], default=0.0
        )

    @property
    def stepping(self) -> float:
        """Seconds in steps on the device."""
        return sum(s.seconds for s in self.steps)

    @functools.cached_property
    def token_times(self) -> dict[int, Float[np.ndarray, " tokens"]]:
        """When each token of each request was committed, in seconds since the repeat began.

        As recorded, or else the end of the step that committed it.
        """
        rows = self.rows
        ends = (
            np.concatenate([np.full(int(s.active.sum()), s.at) for s in self.steps])
            if self.steps
            else np.zeros(0)
        )
        times = {}
        for line in self.requests:
            if line.token_seconds is not None:
                times[line.request] = np.array(line.token_seconds, dtype=np.float64)
                continue
            own = rows.requests == line.request
            committed = np.repeat(ends[own], rows.emitted[own])
            if len(committed) < len(line.tokens):
                raise RunFolderError(
                    f"Request {line.request} has {len(line.tokens)} tokens, and the steps of its "
                    f"repeat committed {len(committed)}: "
                    "the two files are of different runs; delete the cell's folder, and run it "
                    "again."
                )
            times[line.request] = committed[: len(line.tokens)]
        return times


def repeats_of(
    lines: CellLines, facts: Facts | None = None, limits: Limits = NO_LIMITS
) -> list[Repeat]:
    """The generations of a cell that ended, in order."""
    steps: dict[int, list[StepRecord]] = {number: [] for number in lines.repeats}
    requests: dict[int, list[RequestLine]] = {number: [] for number in lines.repeats}
    for step in lines.steps:
        steps[step.repeat].append(step.record())
    for request in lines.requests:
        requests[request.repeat].append(request)
    return [Repeat(steps[number], requests[number], facts, limits=limits) for number in steps]
