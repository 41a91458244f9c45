"""The few shapes of steps that are captured as CUDA graphs, and serve all steps."""

import sys
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple, final

from bass.engine.packing import MOST

SPAN_STEP = 64  # spans without graphs are multiples of this, so that few distinct ones occur
LEAST_SPAN = 256  # positions, the smallest span of backends that read the whole span
SHORT_SPAN = 512  # positions, the shorter span of the others
# Tokens of packed windows. On an H200 fewer take as long: the weights take longer to read.
PACKED = (128, 192, 256, 384, 512, 768)


def bucket(length: int, capacity: int) -> int:
    """The span for `length` positions in use, without graphs."""
    return min(-(-length // SPAN_STEP) * SPAN_STEP, capacity)


def doubled(least: int, most: int) -> tuple[int, ...]:
    """`least`, twice it and so on up to `most`, and `most`: ascending."""
    return (*(least << i for i in range(((most - 1) // least).bit_length())), most)


class StepShape(NamedTuple):
    """packed: the size of the target's packed window; None: it is padded. drafter: its index in
    `Drafter.choices`, 0 without drafts. segments: of prompts, which the target's pass feeds.
    """

    k: int
    span: int
    packed: int | None = None
    drafter: int = 0
    segments: int = 0


@final
@dataclass(frozen=True)
class StepShapes:
    """Draft lengths and spans, both ascending; a step runs in the next larger ones.

    A step whose longest draft is between two lengths runs in the longer one, in which rows draft no
    more than their own lengths. Without lengths and spans, as without graphs, a step has the length
    of its longest draft, and a span of `bucket`.

    The target's window is packed if one of `PACKED` has room for the tokens of all rows, and is
    much smaller than the padded one, and the step feeds no prompt.
    """

    lengths: tuple[int, ...] = ()  # the first is 0; a longer draft than the last has its own length
    spans: tuple[int, ...] = ()  # the last is the capacity of the rows
    reads_lengths: bool = False  # as `AttentionBackend.reads_lengths`
    rows: int = 0  # of windows that are packed; 0: none is
    drafters: int = 1  # that a policy chooses from
    # of prompts that a step can feed, ascending, and the longest drafts of such a step
    segments: tuple[int, ...] = ()
    feeding: int = sys.maxsize

    @classmethod
    def of(
        cls,
        lengths: tuple[int, ...],
        capacity: int,
        reads_lengths: bool = False,
        rows: int = 0,
        drafters: int = 1,
        segments: tuple[int, ...] = (),
        feeding: int = sys.maxsize,
    ) -> "StepShapes":
        """Two spans for a backend that reads the rows' lengths on the device, else powers of two.

        Backends that read the whole span read up to twice the keys and values of the longest row,
        and up to `LEAST_SPAN` of short rows.
        """
        if reads_lengths:
            spans = tuple(sorted({min(SHORT_SPAN, capacity), capacity}))
            return cls(lengths, spans, True, rows, drafters, segments, feeding)
        spans = doubled(LEAST_SPAN, capacity)
        return cls(lengths, spans, drafters=drafters, segments=segments, feeding=feeding)

    def shape(
        self,
        k: int,
        length: int,
        capacity: int,
        tokens: int,
        drafter: int = 0,
        segments: int = 0,
    ) -> StepShape:
        """The shape of a step with drafts of up to k tokens by this drafter, `tokens` in the
        target's window, `length` positions of the longest row, drafted ones included, and
        `segments` of prompts.
        """
        k = self.draft_length(k)
        if segments and self.feeds(k):
            fed = self.segments[bisect_left(self.segments, segments)]
            return StepShape(k, capacity, None, drafter if k else 0, fed)
        packed = next((size for size in self.sizes(k) if size >= tokens), None)
        span = self.span(length, capacity) if packed is None else capacity
        return StepShape(k, span, packed, drafter if k else 0)

    def feeds(self, k: int) -> bool:
        """Whether steps of drafts of up to k tokens can feed prompts."""
        return bool(self.segments) and self.draft_length(k) <= self.feeding

    def sizes(self, k: int) -> list[int]:
        """The sizes of packed windows of steps of this draft length."""
        return [size for size in PACKED if size <= MOST * self.rows * (k + 1)]

    def span(self, length: int, capacity: int) -> int:
        """The span of a step whose longest row has `length` positions, drafted ones included."""
        if not self.spans:
            return bucket(length, capacity)
        return self.spans[bisect_left(self.spans, length)]

    def draft_length(self, k: int) -> int:
        """The draft length of a step whose longest draft has k tokens."""
        at = bisect_left(self.lengths, k)
        return self.lengths[at] if at < len(self.lengths) else k

    def needed(self, lengths: range, drafted: int, feeding: bool = True) -> list[StepShape]:
        """The shapes of all steps of rows of these lengths with up to `drafted` drafted tokens, the
        largest first, so that smaller graphs reuse its memory. feeding: also of those with prompts.
        """
        first, last = (bisect_left(self.spans, n) for n in (lengths.start, lengths.stop - 1))
        fed = self.segments[::-1] if feeding else ()
        return [
            shape
            for k in reversed(self.lengths)
            if k <= self.draft_length(drafted)
            for drafter in range(self.drafters if k else 1)
            for shape in (
                *(StepShape(k, self.spans[-1], None, drafter, n) for n in fed if k <= self.feeding),
                *(StepShape(k, n, None, drafter) for n in reversed(self.spans[first : last + 1])),
                *(StepShape(k, self.spans[-1], n, drafter) for n in reversed(self.sizes(k))),
            )
        ]
