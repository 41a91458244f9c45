"""Text of tokens as they arrive, up to a stop string."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from bass.text.tokenizer import Tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_INCOMPLETE = 4  # tokens: a character that is incomplete has three bytes at most
_MOST_WAITING = 8  # tokens that end within a character


@final
@dataclass
class TextStream:
    """Converts tokens to text that no later token changes.

    The pieces and the flushed rest together equal the tokenizer's decoding of all tokens; so do,
    after every token, the pieces so far and `ending()`. For characters of byte tokens, the pieces
    wait for the end of the run of bytes: a run that is not valid UTF-8 as a whole has no
    characters.
    """

    tokenizer: Tokenizer
    # [shown | not shown yet], decoded together: the text of an id can depend on the one before it
    _window: list[int] = field(default_factory=list)
    _shown: int = 0

    def push(self, *tokens: int) -> str:
        """The text that the tokens complete; empty while a character is incomplete."""
        tried = len(self._window)
        self._window += filter(self._is_text, tokens)
        end = len(self._window)
        while end > self._shown and self._window[end - 1] in self.tokenizer.bytes:
            end -= 1
        settled = max(end - _MOST_INCOMPLETE, self._shown)
        for cut in range(end, max(settled, tried), -1):
            text = self._text_up_to(cut)
            if text and (self.tokenizer.bytes or not text.endswith(BROKEN)):
                return self._give(text, cut)
        if end - self._shown <= _MOST_WAITING:
            return ""
        # bytes that are no text: the first of them, unless that ends within a character
        begun, whole = self._text_up_to(settled), self._text_up_to(end)
        final = whole.startswith(begun) and len(begun) < len(whole)
        return self._give(begun, settled) if final else ""

    def ending(self) -> str:
        """The result that `flush` would have now."""
        return self._text_up_to(len(self._window))

    def flush(self) -> str:
        """The text still held back; an incomplete character becomes a replacement character."""
        text = self.ending()
        self._window, self._shown = [], 0
        return text

    def _is_text(self, token: int) -> bool:
        known = self.tokenizer.fast.id_to_token(token) is not None
        return known and token not in self.tokenizer.silent

    def _text_up_to(self, end: int) -> str:
        """The text, not yet shown, of the window's tokens up to `end`."""
        if end == self._shown:
            return ""
        decode = self.tokenizer.decode
        return decode(self._window[:end])[len(decode(self._window[: self._shown])) :]

    def _give(self, text: str, end: int) -> str:
        """Give `text`, the window's text up to `end`."""
        self._window, self._shown = self._window[self._shown :], end - self._shown
        return text


@final
class StopStrings:
    """Texts that end a completion."""

    def __init__(self, stops: Iterable[str]) -> None:
        self.strings = frozenset(stops)

    def first(self, text: str) -> int | None:
        """Where the first stop string in `text` begins; None without any."""
        found = (at for stop in self.strings if (at := text.find(stop)) >= 0)
        return min(found, default=None)

    def ending(self, text: str, special: str) -> int | None:
        """Where the first stop string begins that ends with a special token after `text`."""
        ends = ((one, one.removesuffix(special)) for one in self.strings)
        found = (len(text) - len(s) for one, s in ends if s != one and text.endswith(s))
        return min(found, default=None)

    def begun(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        begun = (n for stop in self.strings for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(begun, default=0)


@final
class Transcript:
    """Collects a completion's tokens until one completes a stop string.

    That is the first token for which `tokenizer.decode` of all tokens up to it contains a stop
    string, or a special token with whose text a stop string ends. The text is this decoding, up to
    the beginning of the first stop string in it. `push` and `finish` return it in pieces that are
    never retracted: text that later tokens may change waits, and so does text that may be the
    beginning of a stop string.

    Later tokens can change the decoding of earlier ones; the rule applies to each prefix
    separately. An incomplete character is a replacement character, so a stop string with one can
    end a completion within a character. Bytes count as characters although a wrong byte after them
    would break them.
    """

    def __init__(self, tokenizer: Tokenizer, stops: StopStrings | None = None) -> None:
        self.stopped = False
        self._stream = TextStream(tokenizer)
        self._stops = stops
        self._given: list[str] = []
        self._held = ""  # final text that may be the beginning of a stop string

    @property
    def text(self) -> str:
        """The text, as if no more tokens followed."""
        return "".join((*self._given, self._held, self._stream.ending()))

    def push(self, tokens: Sequence[int]) -> tuple[int, str]:
        """(how many of the tokens belong to the completion, the next piece of its text)."""
        if self._stops is None:
            return len(tokens), self._give(self._stream.push(*tokens))
        pieces: list[str] = []
        for count, token in enumerate(tokens, 1):
            certain = self._held + self._stream.push(token)
            text = certain + self._stream.ending()
            end = self._stops.first(text)
            if end is None and (special := self._stream.tokenizer.silent.get(token)):
                end = self._stops.ending(text, special)
            if end is not None:
                self._stream.flush()
                self.stopped, self._held = True, ""
                return count, self._give("".join((*pieces, text[:end])))
            given = len(certain) - self._stops.begun(certain)
            pieces.append(certain[:given])
            self._held = certain[given:]
        return len(tokens), self._give("".join(pieces))

    def finish(self) -> str:
        """The last piece of the text, if no stop string has ended it."""
        held, self._held = self._held, ""
        return self._give(held + self._stream.flush())

    def _give(self, piece: str) -> str:
        self._given.append(piece)
        return piece
