"""The rows of a batch and their prompts: admission, shared prefill, release."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from bass.engine.requests import Request
from bass.interfaces import Drafter, RowStore
from bass.records import CacheBudget, RowAssignment, Sequences, Window

# prompt tokens per row and pass: bounds the memory of a long prompt's prefill; on a GPU, at least
# PREFILL_TOKENS of all rows together, since products of fewer rows wait for the weights
PREFILL_WINDOW, PREFILL_TOKENS = 256, 2048
LEAST_CAUGHT_UP = 4  # columns on a GPU: see `caught_up_columns`
SPAN_STEP = 64  # spans are multiples of this, so that few distinct ones occur


def prefill_window(rows: int, device: torch.device) -> int:
    """Prompt tokens of each of these rows that a pass feeds."""
    most = PREFILL_TOKENS // rows if device.type == "cuda" else 0
    return max(PREFILL_WINDOW, most)


def equal_windows(tokens: int, most: int) -> int:
    """The size of the fewest windows of up to `most` tokens, so that none of them is short."""
    return -(-tokens // -(-tokens // most)) if tokens else most


def caught_up_columns(tokens: int, device: torch.device) -> int:
    """Columns of the windows that feed a drafter the last `tokens` tokens of each row.

    On a GPU they are a power of two, because kernels are compiled for numbers of columns; a token
    that is fed again changes nothing.
    """
    if device.type != "cuda":
        return tokens
    return max(LEAST_CAUGHT_UP, 1 << (tokens - 1).bit_length())


def feed(target: RowStore, drafter: Drafter, window: Window) -> None:
    """Feed a window of prompts to the target and to the drafter."""
    features = target.fill(window)
    drafter.fill(window)
    if drafter.observes:
        drafter.observe(window, features, None)


def bucket(length: int, capacity: int) -> int:
    """The span for `length` positions in use."""
    return min(-(-length // SPAN_STEP) * SPAN_STEP, capacity)


@dataclass
class Slots:
    """The requests in the rows of a batch.

    requests: for each row the index of its request in the run's list, -1 for an idle row.
    """

    sequences: Sequences
    target: RowStore
    drafter: Drafter
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

        def assignment() -> RowAssignment:  # a copy for each store, which may write to it
            return RowAssignment(self.capacities.copy(), source.copy(), shared.copy())

        for store in (self.target, self.drafter):
            store.reserve(assignment())
        fed_rows = idle[: len(leaders)]
        for run in (
            np.split(fed_rows, np.flatnonzero(np.diff(fed_rows) > 1) + 1) if len(fed_rows) else ()
        ):
            self._feed([all_requests[self.requests[row]].prompt for row in run], int(run[0]))
        for store in (self.target, self.drafter):
            store.copy_rows(assignment())
        self._start(idle, [all_requests[request] for request in leaders + followers])
        return idle, sum(len(all_requests[r].prompt) - 1 for r in leaders)

    def _feed(self, prompts: list[list[int]], start: int) -> None:
        """Feed all tokens of each prompt but the last, in windows; -1 pads the shorter prompts."""
        device = self.sequences.tokens.device
        counts = np.array([len(prompt) - 1 for prompt in prompts])
        size = equal_windows(int(counts.max()), prefill_window(len(prompts), device))
        for first in range(0, counts.max(), size):
            positions = np.arange(first, min(first + size, counts.max()))[None].repeat(
                len(prompts), 0
            )
            tokens = np.zeros_like(positions)
            for row, prompt in enumerate(prompts):
                part = prompt[first : min(first + size, counts[row])]
                tokens[row, : len(part)] = part
            positions = np.where(positions < counts[:, None], positions, -1)
            span = bucket(first + positions.shape[1], self.sequences.capacity)
            window = Window(
                torch.as_tensor(tokens, device=device),
                torch.as_tensor(positions, device=device),
                span,
                start,
            )
            feed(self.target, self.drafter, window)

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
