"""Requests exactly the tokens that will be accepted: an upper bound for policies."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class OracleState:
    """The request of each row (-1: none yet), that request's step, and the next request."""

    request: np.ndarray  # int [B]
    step: np.ndarray  # int [B]
    following: int = 0


@final
@dataclass(frozen=True)
class Oracle(DraftLengthPolicy[OracleState]):
    """l_b = min(trace[step, request of b], max_length), where the trace [steps, requests] says how
    many tokens *would* be accepted.

    Such a trace comes from `simulate` (its `would`), or from the accepted tokens of a run with a
    `Fixed` so long that no draft is fully accepted. It stays valid for the oracle's shorter drafts
    if the output is fixed in advance (greedy decoding): x drafted tokens, all accepted, and one
    token of the target commit the same x + 1 tokens as a longer draft with x accepted. With
    sampling, it is a bound for the simulator only.

    `reset` assigns requests to rows, in its order of rows. Beyond the trace's end the length is 0.
    No drafted token is wasted. In time it bounds policies with a length per row if a row's tokens
    cost the same for any drafts of the others. As a step takes as long as its longest draft, one
    length for the batch that misses a rare long acceptance can be faster. It is not registered:
    there is no default trace. Cost: a look-up.
    """

    paper: ClassVar[str] = "this project, a bound"

    trace: np.ndarray
    max_length: int = within("[0, inf)", 16)

    def __post_init__(self) -> None:
        trace = np.array(self.trace)  # a copy: the caller's array may change
        if trace.ndim != 2 or trace.dtype.kind not in "iu" or not trace.size or trace.min() < 0:
            raise OptionError(
                f"`Oracle(trace=...)` has {trace.dtype} of shape {list(trace.shape)}: give counts "
                "of 0 or more [steps, requests]."
            )
        super().__post_init__()
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
