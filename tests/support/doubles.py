"""Doubles that only the laws use: a scorer that checks every pass, a model whose outputs repeat no
token, a policy, and a drafter that knows the output.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from bass.interfaces import Attend, Drafter, DraftLengthPolicy, ForwardingRowStore, RowStore, Scorer
from bass.models.decoder import CausalDecoder
from bass.records import (
    Draft,
    Features,
    Feedback,
    History,
    Noise,
    RowAssignment,
    Scored,
    Sequences,
    Window,
)
from bass.sampling import RowSampling
from bass.sampling_params import Sampling
from bass.testing.small_models import (
    Logits,
    Pairing,
    Prefixes,
    SmallModel,
    SmallTable,
    TableConfig,
    TableDecoder,
)


def warped(options: Sampling, logits: Tensor, history: History) -> Tensor:
    """The distributions of rows that all have these options."""
    rows = torch.tensor([options] * len(logits), dtype=torch.float64, device=logits.device)
    return RowSampling()(logits, replace(history, sampling=rows))


@final
@dataclass
class CheckedScorer(ForwardingRowStore, Scorer):
    """Records the token that a scorer read at each (row, position), and checks every query.

    A query at position p attends to 0..p of its row, so the scorer must have read the committed
    token at each of these positions, and the drafted token above the committed ones.
    """

    scorer: Scorer
    sequences: Sequences
    is_target: bool
    lacking: Collection[int] = ()  # rows that do not draft, of which a draft was not fed all
    fed: Int[np.ndarray, "batch capacity"] = field(init=False)
    passes: int = 0

    def __post_init__(self) -> None:
        self.fed = np.full(tuple(self.sequences.tokens.shape), -1)

    @property
    def store(self) -> RowStore:
        return self.scorer

    def copy_rows(self, assignment: RowAssignment) -> None:
        super().copy_rows(assignment)
        before = self.fed.copy()
        for row in assignment.followers:
            shared = assignment.shared[row]
            self.fed[row] = -1
            self.fed[row, :shared] = before[assignment.source[row], :shared]

    def fill(self, window: Window) -> Features:
        self._record(window)
        return super().fill(window)

    def __call__(self, window: Window) -> Scored:
        self._record(window)
        self.passes += 1
        s = self.sequences
        for row in torch.nonzero(s.active)[:, 0].tolist():
            length, positions = int(s.lens[row]), window.positions[row].tolist()
            used = [p for p in positions if p >= 0]
            if self.is_target:
                last = length - 1
                assert used, f"row {row} has no window"
                assert used[0] == last, f"row {row}: {positions} does not begin at {last}"
                assert int(window.tokens[row, 0]) == int(s.tokens[row, last])
            if used and (self.is_target or row not in self.lacking):
                assert used == [*range(used[0], used[-1] + 1)], f"row {row} has holes: {positions}"
                assert used[-1] < int(s.limits[row]), f"row {row} goes beyond its limit"
                known = self.fed[row, : min(length, used[-1] + 1)]
                committed = s.tokens[row, : len(known)].cpu().numpy()
                assert (known == committed).all(), f"row {row} was not fed what it committed"
                assert (self.fed[row, : used[-1] + 1] >= 0).all()
        return self.scorer(window)

    def _record(self, window: Window) -> None:
        tokens, positions = window.tokens.cpu().numpy(), window.positions.cpu().numpy()
        assert positions.max(initial=-1) < window.span, f"a position is outside {window.span}"
        rows, columns = np.nonzero(positions >= 0)
        at = window.start + rows, positions[rows, columns]
        self.fed[at] = tokens[rows, columns]


@final
@dataclass(frozen=True)
class SmallCounting(SmallModel):
    """Target and draft predict token + 1 after every token, so no token of an output repeats."""

    vocab: int = 40
    dtype: ClassVar[torch.dtype] = SmallTable.dtype
    pairing: ClassVar[Pairing | None] = SmallTable.pairing

    @cached_property
    def models(self) -> dict[str, CausalDecoder]:
        table = 20 * torch.eye(self.vocab).roll(1, 1)
        return {role: _Counting(TableConfig(table, 1)) for role in ("target", "draft")}

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        return 20.0 * np.eye(self.vocab)[(prefixes[:, -1] + 1) % self.vocab]


class _Counting(TableDecoder):
    """Without memory: the next token follows from the last."""

    def hidden(
        self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()
    ) -> tuple[Tensor, Features]:
        return self.embed[window.tokens], ()


@final
@dataclass(frozen=True)
class Cycle(DraftLengthPolicy[tuple[int, int]]):
    """One length for the batch, from a repeated list with runs of zeros between drafts, or each row
    `shift` places after the row before it. A state is (batch, step).
    """

    cycle: tuple[int, ...] = (3, 0, 0, 2, 0, 4)
    shift: int = 0

    @property
    def max_length(self) -> int:
        return max(self.cycle)

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        places = (step + self.shift * np.arange(batch)) % len(self.cycle)
        return np.array(self.cycle, dtype=np.int32)[places]

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


@final
@dataclass(frozen=True)
class Turns(DraftLengthPolicy[tuple[int, int]]):
    """A part of the drafter and a length, from a repeated list, known a step ahead; the length of
    each row is that `shift` places after the row before it. A state is (batch, step).
    """

    turns: tuple[tuple[int, int], ...] = (
        (0, 3), (1, 2), (1, 3), (0, 0), (1, 4), (0, 1), (0, 4), (1, 0), (0, 2), (1, 3)
    )  # fmt: skip
    shift: int = 0

    @property
    def max_length(self) -> int:
        return max(k for _, k in self.turns)

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        places = (step + self.shift * np.arange(batch)) % len(self.turns)
        return np.array(self.turns, dtype=np.int32)[places, 1]

    def drafter(self, state: tuple[int, int]) -> int:
        return self.turns[state[1] % len(self.turns)][0]

    def lengths_ahead(self, state: tuple[int, int]) -> np.ndarray:
        return self.lengths((state[0], state[1] + 1))

    def drafter_ahead(self, state: tuple[int, int]) -> int:
        return self.drafter((state[0], state[1] + 1))

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


@final
@dataclass(frozen=True)
class Scripted(Drafter):
    """Replays each row's known output (by its noise key), with an error wherever `errs(key,
    position)` is true.

    With `soft`, it reports a one-hot distribution, else None, which is equivalent. Beyond a row's
    length its tokens are right, so a test detects code that counts them.
    """

    outputs: dict[int, list[int]]
    errs: Callable[[int, int], bool]
    vocab: int
    soft: bool = False

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        rows: list[list[int]] = []
        for key, length in zip(sequences.keys.tolist(), sequences.lens.tolist(), strict=True):
            known = self.outputs.get(key, [])
            at = range(length, length + k)
            right = [known[p] if p < len(known) else 0 for p in at]
            rows.append(
                [(t + self.errs(key, p)) % self.vocab for t, p in zip(right, at, strict=True)]
            )
        tokens = torch.tensor(rows, dtype=torch.int64, device=lengths.device).reshape(len(rows), k)
        probs = F.one_hot(tokens, self.vocab).to(torch.float32) if self.soft else None
        return Draft(tokens, probs, lengths)
