"""Asks for exactly what will be accepted: a bound on what a policy could save."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy


@dataclass(frozen=True)
class OracleState:
    """The request that each row serves (-1: none yet) and that request's step; the next request to
    be handed out.
    """

    request: np.ndarray  # int [B]
    step: np.ndarray  # int [B]
    following: int = 0


@final
@dataclass(frozen=True)
class Oracle(DraftLengthPolicy[OracleState]):
    """l_b = min(trace[step, request of b], max_length), where the trace [steps, requests] says how
    many tokens *would* be accepted.

    Such a trace comes from `simulate` (its `would`), or from a run whose drafts were never too
    short (`Recorded` around a `Fixed` so long that no draft is accepted whole). It stays true under
    the oracle's own, shorter drafts where the output is fixed in advance (greedy decoding): x
    drafted tokens of which x are accepted, and one of the target's, commit the same x + 1 tokens as
    a longer draft of which x are accepted. When sampling, it is a bound for the simulator only.

    Requests are given to rows in the order in which `reset` names the rows. Beyond the trace's end
    it asks for 0. Not one drafted token is wasted; in time it bounds what lengths per row can reach
    where a row's tokens cost the same whatever the others draft. As a step lasts as long as its
    longest draft, a length for the batch that gives up a rare long acceptance can be faster. It is
    not registered: there is no trace by default. Cost: a look-up.
    """

    paper: ClassVar[str] = "ours, a bound"

    trace: np.ndarray
    max_length: int = 16

    def __post_init__(self) -> None:
        trace = np.array(self.trace)  # a copy: the caller's array may change
        if (
            trace.ndim != 2
            or not np.issubdtype(trace.dtype, np.integer)
            or (trace < 0).any()
            or not trace.size
        ):
            raise OptionError(
                f"`Oracle(trace=...)` has {trace.dtype} of shape {list(trace.shape)}: give counts "
                "of 0 or more [steps, requests]."
            )
        if self.max_length < 0:
            raise OptionError(f"`Oracle(max_length={self.max_length})` must be 0 or more.")
        object.__setattr__(self, "trace", trace)

    def init(self, batch_size: int) -> OracleState:
        return OracleState(np.full(batch_size, -1), np.zeros(batch_size, dtype=np.int64))

    def lengths(self, state: OracleState) -> np.ndarray:
        steps, requests = self.trace.shape
        known = (state.request >= 0) & (state.request < requests) & (state.step < steps)
        would = self.trace[
            np.minimum(state.step, steps - 1), np.clip(state.request, 0, requests - 1)
        ]
        return np.where(known, np.minimum(would, self.max_length), 0).astype(np.int32)

    def update(self, state: OracleState, feedback: Feedback) -> OracleState:
        return OracleState(state.request, state.step + feedback.active, state.following)

    def reset(self, state: OracleState, rows: np.ndarray) -> OracleState:
        request, step = state.request.copy(), state.step.copy()
        request[rows], step[rows] = state.following + np.arange(len(rows)), 0
        return OracleState(request, step, state.following + len(rows))
