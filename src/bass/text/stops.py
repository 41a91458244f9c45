"""Finds the first of many stop strings in a growing text."""

from collections.abc import Iterable
from typing import final

from bass.text.stream import BROKEN


@final
class StopStrings:
    """An automaton for all stop strings at once, by Aho and Corasick (1975).

    Its states are created when texts reach them. Texts share it; each keeps its state. The time is
    linear in the characters of the stop strings and of the texts.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        distinct = list(dict.fromkeys(stops))
        self.start = State(0, distinct)
        self.most_broken = max((stop.count(BROKEN) for stop in distinct), default=0)

    def read(self, state: "State", text: str) -> tuple["State", int | None]:
        """(the state after `text`, where the first stop string begins, of those that end in
        `text`).

        Counted from the start of `text`, so it is negative where the stop string begins in what was
        read before; None where no stop string ends in `text`.
        """
        first: int | None = None
        for end, character in enumerate(text, 1):
            state = self._next(state, character)
            if state.longest and (first is None or end - state.longest < first):
                first = end - state.longest
        return state, first

    def _next(self, state: "State", character: str) -> "State":
        """The state after one more character."""
        made: list[State] = []
        while (known := state.next.get(character)) is None:
            child = state.child(character)
            if child is not None:
                made.append(child)
                state.next[character] = child
            if state.shorter is None:
                known = self.start
                break
            state = state.shorter
        for child in reversed(made):
            child.shorter = known
            child.longest = child.longest or known.longest
            known = child
        return known


@final
class State:
    """The longest suffix of a text that is a prefix of some stop string.

    begun: its length. stops: the stop strings that begin with it. shorter: the state of the next
    shorter such suffix; None for the empty one. longest: the length of the longest stop string that
    the text ends with; 0 for none.
    """

    __slots__ = ("_by_next", "begun", "longest", "next", "shorter", "stops")

    def __init__(self, begun: int, stops: list[str]) -> None:
        self.begun, self.stops = begun, stops
        self.longest = begun if any(len(stop) == begun for stop in stops) else 0
        self.shorter: State | None = None
        self.next: dict[str, State] = {}
        self._by_next: dict[str, list[str]] | None = None

    def child(self, character: str) -> "State | None":
        """A new state for one more character; None if no stop string continues with it."""
        if len(self.stops) == 1:
            goes_on = self.stops[0].startswith(character, self.begun)
            return State(self.begun + 1, self.stops) if goes_on else None
        if self._by_next is None:
            self._by_next = {}
            for stop in self.stops:
                if len(stop) > self.begun:
                    self._by_next.setdefault(stop[self.begun], []).append(stop)
        stops = self._by_next.get(character)
        return None if stops is None else State(self.begun + 1, stops)


@final
class StopSearch:
    """Searches a text for stop strings; the end of the text may still change.

    No character is read more than a few times.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = stops.start  # after the final text
        # text that was read after the final text, and the state after it
        self._ahead, self._state_ahead = "", stops.start

    @property
    def most_broken(self) -> int:
        """The maximum number of replacement characters in a stop string."""
        return self._stops.most_broken

    @property
    def begun(self) -> int:
        """Length of the longest suffix of the final text that is a prefix of a stop string."""
        return self._state.begun

    def push(self, certain: str, ending: str) -> int | None:
        """Where the first stop string begins, counted from the start of `certain`; None without
        any.

        certain: text that becomes final. ending: the text after it for now. The result is negative
        if the stop string begins in earlier final text.
        """
        found: list[int] = []
        if certain:
            self._state, first = self._read(certain)
            self._ahead, self._state_ahead = "", self._state
            found += [] if first is None else [first]
        if not self._ahead.startswith(ending):
            state, first = self._read(ending)
            if len(ending) > len(self._ahead):
                self._ahead, self._state_ahead = ending, state
            found += [] if first is None else [len(certain) + first]
        return min(found, default=None)

    def _read(self, text: str) -> tuple[State, int | None]:
        """Read the text after the final one, without the part that was read before."""
        known = len(self._ahead) if text.startswith(self._ahead) else 0
        state, first = self._stops.read(self._state_ahead if known else self._state, text[known:])
        return state, None if first is None else known + first
