"""The rows of a batch and their prompts: admission, shared prefill, release."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from bass.engine.requests import Request
from bass.interfaces import Drafter, RowStore
from bass.records import CacheBudget, RowAssignment, Sequences, copied


@dataclass
class BatchRows:
    """The requests in the rows of a batch.

    prefill: feeds all tokens of prompts but the last to the rows from the given one on. requests:
    for each row the index of its request in the run's list, -1 for an idle row.
    """

    sequences: Sequences
    target: RowStore
    drafter: Drafter
    prefill: Callable[[list[list[int]], int], None]
    requests: np.ndarray
    capacities: np.ndarray
    queue: deque[int] = field(default_factory=deque)

    @property
    def busy(self) -> bool:
        """Whether a request is running or waiting."""
        return bool(self.queue) or max(self.requests.tolist()) >= 0

    def admit(self, all_requests: list[Request]) -> tuple[np.ndarray, int]:
        """Assign idle rows to waiting requests and prefill them.

        Samples of one prompt share a prefill: the first is fed, or copied from a row that already
        serves the prompt; the others are copies. Returns the assigned rows and the number of prompt
        tokens fed.
        """
        idle = np.flatnonzero(self.requests < 0)[: len(self.queue)] if self.queue else np.arange(0)
        if not len(idle):
            return idle, 0
        donors = {
            tuple(all_requests[r].prompt): row
            for row, r in reversed(list(enumerate(self.requests)))
            if r >= 0
        }
        chosen = [self.queue.popleft() for _ in idle]
        # Leaders, whose prompts are fed, come first: their rows are adjacent and need one pass.
        leaders: list[int] = []
        followers: list[int] = []
        known = set(donors)
        for request in chosen:
            prompt = tuple(all_requests[request].prompt)
            (followers if prompt in known else leaders).append(request)
            known.add(prompt)
        # active rows continue, idle ones hold nothing
        source, shared = np.arange(len(self.requests)), self.capacities.copy()
        for row, request in zip(idle, leaders + followers, strict=True):
            self.requests[row] = request
            self.capacities[row] = all_requests[request].limit
        donors |= {
            tuple(all_requests[request].prompt): int(row)
            for row, request in zip(idle, leaders, strict=False)
        }
        for row, request in zip(idle[len(leaders) :], followers, strict=True):
            source[row] = donors[tuple(all_requests[request].prompt)]
            shared[row] = len(all_requests[request].prompt) - 1

        assignment = RowAssignment(self.capacities.copy(), source, shared)
        for store in (self.target, self.drafter):
            store.reserve(copied(assignment) if store.writes_inputs else assignment)
        fed_rows = idle[: len(leaders)]
        for run in (
            np.split(fed_rows, np.flatnonzero(np.diff(fed_rows) > 1) + 1) if len(fed_rows) else ()
        ):
            self.prefill([all_requests[self.requests[row]].prompt for row in run], int(run[0]))
        for store in (self.target, self.drafter):
            store.copy_rows(copied(assignment) if store.writes_inputs else assignment)
        self._start(idle, [all_requests[request] for request in leaders + followers])
        return idle, sum(len(all_requests[r].prompt) - 1 for r in leaders)

    def _start(self, rows: np.ndarray, requests: list[Request]) -> None:
        s = self.sequences
        tokens = np.zeros(
            (len(rows), max(len(request.prompt) for request in requests)), dtype=np.int64
        )
        for row, request in zip(tokens, requests, strict=True):
            row[: len(request.prompt)] = request.prompt
        ends = np.full((len(rows), s.end_tokens.shape[1]), -1)
        for row, request in zip(ends, requests, strict=True):
            row[: len(request.end_tokens)] = request.end_tokens
        numbers = np.array([(len(r.prompt), r.limit, r.key) for r in requests])
        sampling = np.array([r.sampling for r in requests])
        arrays = rows, tokens, numbers, ends, sampling
        index, prompts, numbers, ends, sampling = (
            torch.as_tensor(array, device=s.tokens.device) for array in arrays
        )
        s.tokens[index, : prompts.shape[1]] = prompts
        s.lens[index], s.limits[index], s.keys[index] = numbers.unbind(1)
        s.prompt_lens[index], s.end_tokens[index], s.sampling[index] = numbers[:, 0], ends, sampling
        s.steps[index] = 0
        s.active[index] = True

    def release(self, row: int) -> None:
        """Mark the row idle until the next admission."""
        self.requests[row] = -1
        self.capacities[row] = 0


def room_for(requests: list[Request], batch: int) -> CacheBudget:
    """The cache budget of these requests, `batch` at a time.

    Requests with the same prompt share the positions that a prefill feeds.
    """
    groups: dict[tuple[int, ...], int] = {}
    numbers = [
        (r.limit, len(r.prompt) - 1, groups.setdefault(tuple(r.prompt), len(groups)))
        for r in requests
    ]
    return CacheBudget(batch, *np.array(numbers, dtype=np.int64).T)
