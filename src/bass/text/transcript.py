"""The text of one completion, up to a stop string."""

from collections.abc import Sequence
from typing import final

from bass.text.stops import StopSearch, StopStrings
from bass.text.stream import TextStream
from bass.text.tokenizer import Tokenizer


@final
class Transcript:
    """Collects a completion's tokens until one completes a stop string.

    That is the first token for which `tokenizer.decode` of all tokens up to it contains a stop
    string. The text is this decoding, up to the beginning of the first stop string in it. `push`
    and `finish` return it in pieces that are never retracted: text that later tokens may change
    waits, and so does text that may be the beginning of a stop string.

    Later tokens can change the decoding of earlier ones; the rule applies to each prefix
    separately. An incomplete character is a replacement character, so a stop string with one can
    end a completion within a character. A space counts although punctuation after it would remove
    it. Bytes count as characters although a wrong byte after them would break them.
    """

    def __init__(self, tokenizer: Tokenizer, stops: StopStrings | None = None) -> None:
        self.stopped = False
        self._stream = TextStream(tokenizer)
        self._search = None if stops is None else StopSearch(stops)
        self._given: list[str] = []
        self._held: list[str] = []  # final text that may be the beginning of a stop string
        self._length_held = 0

    @property
    def text(self) -> str:
        """The text, as if no more tokens followed."""
        return "".join((*self._given, *self._held, self._stream.ending()))

    def push(self, tokens: Sequence[int]) -> tuple[int, str]:
        """(how many of the tokens belong to the completion, the next piece of its text)."""
        if self._search is None:
            self._hold(self._stream.push(*tokens))
            return len(tokens), self._give(self._length_held)
        for count, token in enumerate(tokens, 1):
            certain = self._stream.push(token)
            first = self._search.push(certain, self._stream.ending(self._search.most_broken))
            if first is not None:
                first += self._length_held
                self._hold(certain + self._stream.flush())
                piece = self._give(first)
                self.stopped, self._held = True, []
                return count, piece
            self._hold(certain)
        return len(tokens), self._give(self._length_held - self._search.begun)

    def finish(self) -> str:
        """The last piece of the text, if no stop string has ended it."""
        self._hold(self._stream.flush())
        return self._give(self._length_held)

    def _hold(self, text: str) -> None:
        if text:
            self._held.append(text)
            self._length_held += len(text)

    def _give(self, length: int) -> str:
        """The first characters of the held text."""
        if not length:
            return ""
        held = "".join(self._held)
        piece, self._held = held[:length], [held[length:]]
        self._length_held -= length
        self._given.append(piece)
        return piece
