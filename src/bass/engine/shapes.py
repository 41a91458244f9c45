"""The few shapes of steps that are captured as CUDA graphs, and serve all steps."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import final

SPAN_STEP = 64  # spans without graphs are multiples of this, so that few distinct ones occur
LEAST_SPAN = 256  # positions, the smallest span of backends that read the whole span
SHORT_SPAN = 512  # positions, the shorter span of the others


def bucket(length: int, capacity: int) -> int:
    """The span for `length` positions in use, without graphs."""
    return min(-(-length // SPAN_STEP) * SPAN_STEP, capacity)


def doubled(least: int, most: int) -> tuple[int, ...]:
    """`least`, twice it and so on up to `most`, and `most`: ascending."""
    return (*(least << i for i in range(((most - 1) // least).bit_length())), most)


@final
@dataclass(frozen=True)
class StepShapes:
    """Draft lengths and spans, both ascending; a step runs in the next larger ones.

    A step whose longest draft is between two lengths runs in the longer one, in which rows draft no
    more than their own lengths. Without lengths and spans, as without graphs, a step has the length
    of its longest draft, and a span of `bucket`.
    """

    lengths: tuple[int, ...] = ()  # the first is 0; a longer draft than the last has its own length
    spans: tuple[int, ...] = ()  # the last is the capacity of the rows
    reads_lengths: bool = False  # as `AttentionBackend.reads_lengths`

    @classmethod
    def of(
        cls, lengths: tuple[int, ...], capacity: int, reads_lengths: bool = False
    ) -> "StepShapes":
        """Two spans for a backend that reads the rows' lengths on the device, else powers of two.

        Backends that read the whole span read up to twice the keys and values of the longest row,
        and up to `LEAST_SPAN` of short rows.
        """
        if reads_lengths:
            return cls(lengths, tuple(sorted({min(SHORT_SPAN, capacity), capacity})), True)
        return cls(lengths, doubled(LEAST_SPAN, capacity))

    def span(self, length: int, capacity: int) -> int:
        """The span of a step whose longest row has `length` positions, drafted ones included."""
        if not self.spans:
            return bucket(length, capacity)
        return self.spans[bisect_left(self.spans, length)]

    def draft_length(self, k: int) -> int:
        """The draft length of a step whose longest draft has k tokens."""
        at = bisect_left(self.lengths, k)
        return self.lengths[at] if at < len(self.lengths) else k

    def needed(self, lengths: range, drafted: int) -> list[tuple[int, int]]:
        """The (draft length, span) of all steps of rows of these lengths with up to `drafted`
        drafted tokens, the largest first, so that smaller graphs reuse its memory.
        """
        first, last = (bisect_left(self.spans, n) for n in (lengths.start, lengths.stop - 1))
        return [
            (k, span)
            for k in reversed(self.lengths)
            if k <= self.draft_length(drafted)
            for span in reversed(self.spans[first : last + 1])
        ]
