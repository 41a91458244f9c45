"""Requests to the engine, and the records that it returns while it runs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from bass.engine.cost import NO_WORK, Work
from bass.sampling_params import Sampling

# The reported log-probability of a token that the target excludes (its logit is -inf), and the
# smallest one that is reported: JSON has no infinity. vLLM reports the same value.
EXCLUDED = -9999.0


@dataclass(frozen=True)
class Request:
    """One sample of one prompt.

    limit: length at which the row is complete, prompt included. key: of its noise.
    max_draft_length: the most tokens to draft in a step; None: what the policy requests.
    """

    prompt: list[int]
    limit: int
    key: int
    prompt_index: int = 0
    sample_index: int = 0
    end_tokens: tuple[int, ...] = ()
    sampling: Sampling = Sampling()  # noqa: RUF009  (a tuple)
    max_draft_length: int | None = None


class Source(ABC):
    """Requests that arrive while a run is on, for example by their times."""

    @abstractmethod
    def poll(self, now: float) -> list[Request]:
        """Those that have arrived since the last call. now: seconds since the run began.

        They have the next indices of the run.
        """

    @abstractmethod
    def wait(self, now: float) -> bool:
        """Wait until a request has arrived; False if none will. Called by an idle engine."""


@dataclass(frozen=True)
class Emission:
    """The tokens that one step committed for one request.

    request: index in the list of requests. logprobs: at least `EXCLUDED`.
    """

    request: int
    tokens: list[int]
    logprobs: list[float]
    done: bool
    seconds: float  # since the run began


@dataclass(frozen=True)
class StepRecord:
    """One step of the trace; arrays have one entry per row.

    requests: index of each row's request, -1 for an idle row.
    """

    k: int  # of the shape: at least the longest draft
    requests: np.ndarray
    drafted: np.ndarray  # without `trimmed`
    accepted: np.ndarray
    emitted: np.ndarray
    # of the step on the device, with copies, what the drafter lacked and is fed before it, and the
    # prompts that its pass feeds; a step launched ahead counts from the previous report
    seconds: float
    # from the previous report to the launch: bookkeeping and policy, without prefills before the
    # step, captures and consumers of the run
    host_seconds: float
    at: float  # end of the step, seconds since the run began
    # Drafted tokens: the first `drafted` columns of a row. None where they were not recorded.
    draft_tokens: np.ndarray | None = None  # int [B, columns]
    # of each in the distribution it was drawn from; NaN for a deterministic draft
    draft_probs: np.ndarray | None = None
    work: Work = NO_WORK  # of all forward passes
    trimmed: np.ndarray | None = None  # drafted tokens that a trim took back; None without one
    fed: int = 0  # tokens of prompts, by the target's pass
    drafter: int = 0  # that drafted, of `Drafter.choices`


@dataclass
class RunStatus:
    """Status of a run; outlives the run."""

    over: bool = False  # ended, or closed
    failed: bool = False


@dataclass
class RunRecord:
    """Record of a run: its steps, and the end of each request's prefill.

    Times are in seconds since the run began and exclude `capture_seconds`, the time that preparing
    new step shapes took.
    """

    steps: list[StepRecord] = field(default_factory=list)
    prefilled: dict[int, float] = field(default_factory=dict)
    capture_seconds: float = 0.0
