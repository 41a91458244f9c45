"""Feeds prompts to target and drafter, and to a drafter the tokens of steps without drafts: in
windows launched by the host, or by CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bass.engine import shapes
from bass.engine.cost import Pass, PassLog
from bass.interfaces import Drafter, RowStore
from bass.ops import batch_state
from bass.records import Observation, Sequences, Window

# prompt tokens per row and pass: bounds the memory of a long prompt's prefill; on a GPU, at least
# PREFILL_TOKENS of all rows together, since products of fewer rows wait for the weights
PREFILL_WINDOW, PREFILL_TOKENS = 256, 2048
# of all rows, in windows that are captured: more of them keep the device busy for longer than the
# host takes to launch their kernels one by one
CAPTURED_TOKENS = (512, 256, 128)
MOST_REPLAYS = 3  # windows of a prompt that are cheaper than one that is launched by the host
# of all prompts, between two steps of running rows: on a GPU the products of so many rows wait for
# the weights, as those of a step do
CHUNK_TOKENS = {"cpu": 64, "cuda": 256}
CAUGHT_UP = [32, 8]  # columns of the windows that are captured for a drafter that catches up

Record = Callable[[Callable[[], None]], Callable[[], None]]


class Part(NamedTuple):
    """The tokens `first` to `last - 1` of a prompt, to be fed to a row.

    The last token of a prompt is not fed.
    """

    row: int
    prompt: list[int]
    first: int
    last: int


def chunk_tokens(device: torch.device) -> int:
    """Tokens of all prompts that are fed between two steps of running rows."""
    return CHUNK_TOKENS["cuda" if device.type == "cuda" else "cpu"]


def prefill_window(rows: int, device: torch.device) -> int:
    """Prompt tokens of each of these rows that a pass feeds."""
    most = PREFILL_TOKENS // rows if device.type == "cuda" else 0
    return max(PREFILL_WINDOW, most)


def equal_windows(tokens: int, most: int) -> int:
    """The size of the fewest windows of up to `most` tokens, so that none of them is short."""
    return -(-tokens // -(-tokens // most)) if tokens else most


def captured_span(capacity: int) -> int:
    """The span of the windows that are captured: none of their positions is beyond it."""
    return min(shapes.SHORT_SPAN, capacity)


def captured_windows(rows: int, capacity: int) -> list[int]:
    """Columns of the windows of `rows` rows that are captured, the largest first."""
    most = captured_span(capacity)
    return sorted({min(max(1, tokens // rows), most) for tokens in CAPTURED_TOKENS})[::-1]


def windows_of(tokens: int, columns: list[int]) -> list[int]:
    """The fewest captured windows, the last as small as possible, that hold `tokens` tokens.

    columns: descending, as of `captured_windows`.
    """
    full, left = divmod(tokens, columns[0])
    last = [next(size for size in reversed(columns) if size >= left)] if left else []
    return [columns[0]] * full + last


def most_captured(rows: int, capacity: int) -> int:
    """Tokens of the longest prompt, without its last token, that graphs of `rows` rows feed."""
    return min(MOST_REPLAYS * captured_windows(rows, capacity)[0], captured_span(capacity))


def caught_up_columns(tokens: int, device: torch.device) -> int:
    """Columns of the windows that feed a drafter the last `tokens` tokens of each row.

    On a GPU they are a power of two, because kernels are compiled for numbers of columns; a token
    that is fed again changes nothing.
    """
    if device.type != "cuda":
        return tokens
    return max(CAUGHT_UP[-1], 1 << (tokens - 1).bit_length())


def empty_window(rows: int, columns: int, span: int, device: torch.device) -> Window:
    """A window without a token."""
    positions = torch.full((rows, columns), -1, device=device)
    return Window(torch.zeros_like(positions), positions, span)


def feed(
    target: RowStore, drafter: Drafter, window: Window, following: Int[Tensor, "batch window"]
) -> None:
    """Feed a window of prompts, and the tokens after its own, to the target and to the drafter."""
    features = target.fill(window)
    drafter.fill(window)
    if drafter.observes:
        drafter.observe(Observation(window, following, features))


def padded(parts: list[Part], rows: int, start: int, width: int) -> np.ndarray:
    """Tokens, positions and following tokens [3, rows, width] of parts, for the rows from `start`
    on.

    Positions are -1 where there is no token.
    """
    found = np.zeros((3, rows, width), dtype=np.int64)
    found[1] = -1
    for row, prompt, first, last in parts:
        fed = prompt[first:last], np.arange(first, last), prompt[first + 1 : last + 1]
        found[:, row - start, : last - first] = fed
    return found


def feed_prompts(target: RowStore, drafter: Drafter, rows: Sequences, parts: list[Part]) -> None:
    """Feed parts of prompts to their rows, in windows of adjacent rows."""
    ordered, device = sorted(parts), rows.tokens.device
    breaks = [i for i in range(1, len(parts)) if ordered[i].row > ordered[i - 1].row + 1]
    for i, j in pairwise((0, *breaks, len(parts))):
        own, start, count = ordered[i:j], ordered[i].row, j - i
        most, before = max(p.last - p.first for p in own), max(p.first for p in own)
        least = CHUNK_TOKENS["cuda"] if before and device.type == "cuda" else 0
        staged = padded(own, count, start, max(most, least))
        size = max(equal_windows(most, prefill_window(count, device)), least)
        for first in range(0, most, size):
            last = min(first + size, staged.shape[2])
            tokens, positions, following = (
                torch.as_tensor(np.ascontiguousarray(part), device=device)
                for part in staged[:, :, first:last]
            )
            window = Window(tokens, positions, shapes.bucket(before + last, rows.capacity), start)
            feed(target, drafter, window, following)


@final
class PrefillGraphs:
    """The prefill of short prompts as CUDA graphs, one for each number of columns.

        prompts -> [3, rows, columns] as of `padded` -> device -> window -> graph
                                                               -> window -> graph

    Each feeds all rows of an engine; a row without a prompt has positions of -1. A pass of up to
    `CAPTURED_TOKENS` tokens takes the device a tenth of the time that the host takes to launch its
    kernels one by one.
    """

    def __init__(self, target: RowStore, drafter: Drafter, sequences: Sequences) -> None:
        self.target, self.drafter, self.sequences = target, drafter, sequences
        # by the number of columns, descending: the window, the tokens after its own, and what
        # replays its graph
        self.captured: dict[int, tuple[Window, Tensor, Callable[[], None]]] = {}

    @torch.inference_mode()
    def prepare(self, record: Record) -> None:
        """Capture the windows, if they are not captured yet.

        record: runs a function once and captures it, and returns what replays it.
        """
        if self.captured:
            return
        captured = {}
        rows, capacity = len(self.sequences.lens), self.sequences.capacity
        span, device = captured_span(capacity), self.sequences.tokens.device
        for columns in captured_windows(rows, capacity):
            with torch.inference_mode(False):  # writable inside and outside of it
                window = empty_window(rows, columns, span, device)
                following = torch.zeros_like(window.tokens)
            replay = record(partial(feed, self.target, self.drafter, window, following))
            captured[columns] = window, following, replay
        self.captured = captured

    def feed(self, parts: list[Part]) -> bool:
        """Feed parts of prompts to their rows; False if they are too long for it."""
        rows, capacity = len(self.sequences.lens), self.sequences.capacity
        most, end = max(part.last - part.first for part in parts), max(part.last for part in parts)
        short = most <= most_captured(rows, capacity) and end <= captured_span(capacity)
        if not (self.captured and short):
            return False
        sizes = windows_of(most, [*self.captured])
        given = padded(parts, rows, 0, sum(sizes))
        staged = torch.as_tensor(given, device=self.sequences.tokens.device)
        for size, columns in zip(sizes, staged.split(sizes, 2), strict=True):
            window, following, replay = self.captured[size]
            placed = zip((window.tokens, window.positions, following), columns, strict=True)
            for own, column in placed:
                own.copy_(column)
            replay()
        return True


@final
class CatchUpGraphs:
    """What a drafter lacks after steps without drafts, fed by CUDA graphs, one for each number of
    columns and each span.

        skipped -> device -> the last tokens of each row but `skipped` -> window -> graph

    Windows include tokens that the drafter has: to feed them again changes nothing.
    """

    def __init__(
        self, drafter: Drafter, sequences: Sequences, log: PassLog, spans: tuple[int, ...]
    ) -> None:
        self.drafter, self.sequences, self.log = drafter, sequences, log
        self.shapes = [*product(CAUGHT_UP, spans)]
        self.skipped = torch.zeros_like(sequences.lens[:1])  # device
        # what replays each graph, and the passes in it
        self.captured: dict[tuple[int, int], tuple[Callable[[], None], tuple[Pass, ...]]] = {}

    @torch.inference_mode()
    def prepare(self, record: Record) -> None:
        """Capture the windows once, if the drafter keeps something of them.

        record: as of `PrefillGraphs.prepare`.
        """
        if self.captured:
            return
        captured = {}
        for shape in self.shapes:
            replay = record(partial(self.fill, *shape))
            if not (passes := self.log.take()):
                return
            captured[shape] = replay, passes
        self.captured = captured

    def fill(self, columns: int, span: int) -> None:
        """Feed the last `columns` tokens of each row but the last `skipped`."""
        self.log.take()  # drops the passes of a first run
        rows = replace(self.sequences, lens=self.sequences.lens - self.skipped)
        self.drafter.fill(Window(*batch_state.last(rows, columns), span))

    def feed(self, lacking: int, span: int) -> tuple[Pass, ...]:
        """Feed the last `lacking` tokens of each row; returns the passes."""
        sizes = windows_of(lacking, CAUGHT_UP)
        left, passes = sum(sizes), tuple[Pass, ...]()
        for columns in sizes:
            left -= columns
            replay, fed = self.captured[columns, span]
            self.skipped.fill_(left)  # in the order of the stream: the launch holds the number
            replay()
            passes += fed
        return passes
