"""Feeds prompts to the target, and to a drafter what it lacks: in windows launched by the host, or
by CUDA graphs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bass.engine import shapes
from bass.engine.cost import Pass, PassLog
from bass.interfaces import Drafter, RowStore
from bass.records import Observation, Sequences, Window

# prompt tokens per row and pass, if the host launches it: bounds the memory of a long prompt's
# prefill; on a GPU, at least PREFILL_TOKENS of all rows together, since products of fewer rows wait
# for the weights
PREFILL_WINDOW, PREFILL_TOKENS = 256, 2048
# A captured window has segments: columns of adjacent tokens of a row, which may be any row.
SEGMENT = 32  # columns
SEGMENTS = (64, 32, 16, 12, 10, 8, 6, 5, 4, 2, 1)  # of each window that is captured
# Of prompts, in the pass of a captured step, ascending; the most take about as long as a step.
FED_SEGMENTS = (5, 10)
MOST_JOINED = 160  # tokens of such a step's window: more wait for arithmetic, not for weights
WEIGHT_TOKENS = 128  # tokens that take as long as reading the weights of a pass
# Prompt tokens between two steps of running rows: of all rows together, and on a GPU at least
# ROW_TOKENS for each row. They take about as long as a step.
CHUNK_TOKENS, ROW_TOKENS = {"cpu": 64, "cuda": 256}, 8
LEAST_CAUGHT_UP = 8  # columns of the windows of a drafter that catches up, if the host launches it

Record = Callable[[Callable[[], None]], Callable[[], None]]
Feed = Callable[[Window, Int[Tensor, "batch window"]], object]  # a window, the tokens after its own


class Prompts(NamedTuple):
    """A window of segments of prompts, and the token after each of its tokens."""

    window: Window
    following: Int[Tensor, "segments columns"]

    def stage(
        self, rows: Int[Tensor, " segments"], columns: Int[Tensor, "3 segments columns"]
    ) -> None:
        """Write the segments of `in_segments` into it."""
        assert self.window.rows is not None
        own = self.window.tokens, self.window.positions, self.following, self.window.rows
        for tensor, value in zip(own, (*columns, rows), strict=True):
            tensor.copy_(value)

    def hold(self, parts: "Sequence[Part]") -> None:
        """Write parts into it, which fit."""
        device = self.following.device
        self.stage(*(on_device(one, device) for one in in_segments(parts, len(self.following))))


class Part(NamedTuple):
    """The tokens `first` to `last - 1` of a row, to be fed to it.

    The last token of a row is not fed.
    """

    row: int
    prompt: list[int]  # and what follows it
    first: int
    last: int


def chunk_tokens(rows: int, device: torch.device, joins: bool = False) -> tuple[int, int]:
    """Tokens of all prompts that are fed between two steps of these rows, and of a segment. joins:
    some steps feed prompts themselves.
    """
    if device.type != "cuda":
        return CHUNK_TOKENS["cpu"], SEGMENT if joins else 1
    return max(CHUNK_TOKENS["cuda"], ROW_TOKENS * rows), SEGMENT


def prefill_window(rows: int, device: torch.device) -> int:
    """Prompt tokens of each of these rows that a pass feeds."""
    most = PREFILL_TOKENS // rows if device.type == "cuda" else 0
    return max(PREFILL_WINDOW, most)


def equal_windows(tokens: int, most: int) -> int:
    """The size of the fewest windows of up to `most` tokens, so that none of them is short."""
    return -(-tokens // -(-tokens // most)) if tokens else most


@cache
def segment_windows(segments: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The captured windows that hold this number of segments in the least time, by their sizes.

    sizes: segments of each window that is captured, descending.
    """
    if full := segments // sizes[0]:
        return (sizes[0],) * full + segment_windows(segments % sizes[0], sizes)
    if not segments:
        return ()
    ways = ((size, *segment_windows(max(segments - size, 0), sizes)) for size in sizes)
    return min(ways, key=lambda way: sum(WEIGHT_TOKENS + SEGMENT * size for size in way))


def caught_up_columns(tokens: int, device: torch.device) -> int:
    """Columns of the windows, without graphs, that feed a drafter up to `tokens` tokens of a row.

    On a GPU they are a power of two, because kernels are compiled for numbers of columns.
    """
    if device.type != "cuda":
        return tokens
    return max(LEAST_CAUGHT_UP, 1 << (tokens - 1).bit_length())


def empty_window(rows: int, columns: int, span: int, device: torch.device) -> Window:
    """A window without a token."""
    positions = torch.full((rows, columns), -1, device=device)
    return Window(torch.zeros_like(positions), positions, span)


def empty_segments(segments: int, capacity: int, device: torch.device) -> Prompts:
    """A window of this number of segments without a token."""
    window = empty_window(segments, SEGMENT, capacity, device)
    window = replace(window, rows=window.tokens.new_zeros(segments))
    return Prompts(window, torch.zeros_like(window.tokens))


def segment_kinds(capacity: int, device: torch.device) -> Iterator[Prompts]:
    """Windows of segments without a token, one of each number of segments that is captured."""
    return (empty_segments(segments, capacity, device) for segments in SEGMENTS)


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device, for which the host does not wait."""
    tensor = torch.as_tensor(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def feeds_target(target: RowStore, drafter: Drafter) -> Feed:
    """What feeds a window of prompts to the target, and its states to the drafter."""

    def feed(window: Window, following: Int[Tensor, "batch window"]) -> None:
        features = target.fill(window)
        if drafter.observes:
            drafter.observe(Observation(window, following, features))

    return feed


def feeds_drafter(drafter: RowStore) -> Feed:
    """What feeds a window to the drafter."""
    return lambda window, following: drafter.fill(window)


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


def feed_parts(feed: Feed, rows: Sequences, parts: list[Part], catches_up: bool = False) -> None:
    """Feed parts to their rows, in windows of adjacent rows.

    catches_up: the parts are of any length and begin anywhere, but are not of prompts in chunks.
    """
    ordered, device = sorted(parts), rows.tokens.device
    breaks = [i for i in range(1, len(parts)) if ordered[i].row > ordered[i - 1].row + 1]
    for i, j in pairwise((0, *breaks, len(parts))):
        own, start, count = ordered[i:j], ordered[i].row, j - i
        most, before = max(p.last - p.first for p in own), max(p.first for p in own)
        least = CHUNK_TOKENS["cuda"] if before and device.type == "cuda" else 0
        size = max(equal_windows(most, prefill_window(count, device)), least)
        if catches_up:
            least = caught_up_columns(most, device)
            size = min(least, PREFILL_WINDOW)
        staged = padded(own, count, start, max(most, least))
        for first in range(0, most, size):
            last = min(first + size, staged.shape[2])
            tokens, positions, following = (
                torch.as_tensor(np.ascontiguousarray(part), device=device)
                for part in staged[:, :, first:last]
            )
            window = Window(tokens, positions, shapes.bucket(before + last, rows.capacity), start)
            feed(window, following)


def segments_of(parts: Sequence[Part]) -> int:
    """The number of segments of parts."""
    return sum(-(-(part.last - part.first) // SEGMENT) for part in parts)


def in_segments(parts: Sequence[Part], segments: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows [segments] of the parts cut into segments, and their tokens, positions and following
    tokens [3, segments, SEGMENT], positions -1 where there is no token.
    """
    rows, at = np.zeros(segments, dtype=np.int64), 0
    found = np.zeros((3, segments, SEGMENT), dtype=np.int64)
    found[1] = -1
    for row, prompt, first, last in parts:
        for start in range(first, last, SEGMENT):
            stop = min(start + SEGMENT, last)
            fed = prompt[start:stop], np.arange(start, stop), prompt[start + 1 : stop + 1]
            rows[at], found[:, at, : stop - start] = row, fed
            at += 1
    return rows, found


@final
class SegmentGraphs:
    """Windows of segments as CUDA graphs, one for each number of segments, which serve any rows of
    a storage.

        prompts -> parts of SEGMENT tokens -> device -> window of segments -> graph
                                                   -> window of segments -> graph

        row 5   [ 0 .. 31 ][ 32 .. 63 ][ 64 .. 70 ]      a window of four segments, whose rows
        row 2   [ 0 .. 19 ]                              are 5, 5, 5, 2

    Prompts of any lengths thus fill a window, and the device takes a fraction of the time that the
    host takes to launch the kernels one by one. A window stores all keys and values of a layer
    before its queries attend.

    log: of the drafter's passes. optional: nothing is captured if a window takes none of them.
    """

    def __init__(
        self, run: Feed, sequences: Sequences, log: PassLog, optional: bool = False
    ) -> None:
        self.run, self.sequences, self.log, self.optional = run, sequences, log, optional
        # by the number of segments: the window, what replays its graph, and the passes in it
        self.captured: dict[int, tuple[Prompts, Callable[[], None], tuple[Pass, ...]]] = {}

    @torch.inference_mode()
    def prepare(self, record: Record) -> None:
        """Capture the windows, if they are not captured yet.

        record: runs a function once and captures it, and returns what replays it.
        """
        if self.captured:
            return
        with torch.inference_mode(False):  # writable inside and outside of it
            kinds = [*segment_kinds(self.sequences.capacity, self.sequences.tokens.device)]
        if self.optional:  # an empty graph has a warning
            self._logged(*kinds[-1])
            if not self.log.take():
                return
        captured = {}
        for prompts in kinds:
            replay = record(partial(self._logged, *prompts))
            captured[len(prompts.following)] = prompts, replay, self.log.take()
        self.captured = captured

    def _logged(self, window: Window, following: Int[Tensor, "batch window"]) -> None:
        self.log.take()  # drops the passes of a first run
        self.run(window, following)

    def feed(self, parts: list[Part]) -> tuple[Pass, ...]:
        """Feed parts to their rows; returns the passes."""
        device, passes = self.sequences.tokens.device, tuple[Pass, ...]()
        sizes = segment_windows(segments_of(parts), SEGMENTS)
        rows, tokens = (on_device(array, device) for array in in_segments(parts, sum(sizes)))
        each = zip(sizes, rows.split(sizes), tokens.split(sizes, 1), strict=True)
        for size, rows_of_segments, columns in each:
            prompts, replay, fed = self.captured[size]
            prompts.stage(rows_of_segments, columns)
            replay()
            passes += fed
        return passes


class PrefillGraphs(NamedTuple):
    """Those that feed prompts to the target, and to each drafter what it lacks."""

    target: SegmentGraphs
    drafters: tuple[SegmentGraphs, ...]

    @property
    def all(self) -> tuple[SegmentGraphs, ...]:
        return self.target, *self.drafters
