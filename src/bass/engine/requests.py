"""What the engine is asked for, and what it tells while it runs."""

from dataclasses import dataclass, field

import numpy as np

from bass.engine.cost import NO_WORK, Work
from bass.records import SAMPLING_OPTIONS

# The log-probability that is told of a token that the target excludes (its logit is -inf), and the
# least of all: JSON has no infinity. As vLLM tells it.
EXCLUDED = -9999.0


@dataclass(frozen=True)
class Request:
    """One sample of one prompt.

    `limit`: length, prompt included, at which it is complete. `key`: of its noise. `sampling`: a
    row of `Sequences.sampling`.
    """

    prompt: list[int]
    limit: int
    key: int
    prompt_index: int = 0
    sample_index: int = 0
    end_tokens: tuple[int, ...] = ()
    sampling: tuple[float, ...] = tuple(SAMPLING_OPTIONS.values())


@dataclass(frozen=True)
class Emission:
    """The tokens that one step committed for one request (by its index in the list of requests).

    `logprobs` are `EXCLUDED` or more.
    """

    request: int
    tokens: list[int]
    logprobs: list[float]
    done: bool
    seconds: float  # since the run began


@dataclass(frozen=True)
class StepRecord:
    """One step of the trace.

    Arrays have one entry per slot; `requests` says whose it was, -1 for an idle slot.
    """

    k: int
    span: int
    positions: int  # of all active rows, committed and drafted
    requests: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray
    # of the step on the device, with its copies; of one launched ahead, since the report before
    seconds: float
    # before it, since the report of the last one: bookkeeping and policy; prefills, captures and
    # readers left out
    host_seconds: float
    at: float  # when it ended, since the run began
    # What was drafted: the first `drafted` columns of a row. None where nobody noted it.
    draft_tokens: np.ndarray | None = None  # int [B, columns]
    # of each in the distribution it was drawn from; NaN for a deterministic draft
    draft_probs: np.ndarray | None = None
    work: Work = NO_WORK  # of all forward passes

    @property
    def active(self) -> np.ndarray:
        """Rows that took part in the step."""
        return self.requests >= 0


@dataclass
class Trace:
    """A run as it happened: its steps, and when each request's prefill ended.

    Times since the run began leave out `capture_seconds`, in which steps were prepared that had not
    occurred before.
    """

    steps: list[StepRecord] = field(default_factory=list)
    prefilled: dict[int, float] = field(default_factory=dict)
    prompt_tokens_fed: int = 0
    capture_seconds: float = 0.0
