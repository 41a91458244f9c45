"""Text of tokens as they arrive."""

from codecs import IncrementalDecoder, getincrementaldecoder
from dataclasses import dataclass, field
from typing import final

from bass.text.tokenizer import Tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_INCOMPLETE = 4  # tokens: a character that is incomplete has three bytes at most
_MOST_EMPTY = 8  # tokens without text that are decoded again with those after them


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
    _run: "_ByteRun | None" = None  # at the end of the window
    _rest: str = ""  # text whose clean-up depends on later text

    def push(self, *tokens: int) -> str:
        """The text that the tokens complete; empty while a character is incomplete."""
        whole = self._at_once(tokens) if len(tokens) > 1 else None
        return "".join(map(self._push, tokens)) if whole is None else whole

    def ending(self, most_broken: int | None = None) -> str:
        """The result that `flush` would have now.

        most_broken: the largest number of replacement characters for a run of bytes that is not
        valid so far.
        """
        raw = (
            self._text_up_to(len(self._window))
            if self._run is None
            else self._run.text(most_broken)
        )
        return self.tokenizer.tidy(self._rest + raw)

    def flush(self) -> str:
        """The text still held back; an incomplete character becomes a replacement character."""
        text = self.ending()
        self._window, self._shown, self._run, self._rest = [], 0, None, ""
        return text

    def _at_once(self, tokens: tuple[int, ...]) -> str | None:
        """The text of several tokens by one decoding; None if a character may be incomplete."""
        known = [token for token in tokens if self._is_text(token)]
        if not known or known[-1] in self.tokenizer.bytes:
            return None
        window, self._window = self._window, self._window + known
        text = self._text_up_to(len(self._window))
        if not text or BROKEN in text:
            self._window = window
            return None
        return self._give(text, len(self._window))

    def _push(self, token: int) -> str:
        if not self._is_text(token):
            return ""
        byte = self.tokenizer.bytes.get(token)
        if byte is not None:
            self._run = self._run or _ByteRun(self.tokenizer, list(self._window))
            self._run.push(token, byte)
            self._window.append(token)
            return ""
        self._run = None
        self._window.append(token)
        text = self._text_up_to(len(self._window))
        if text.endswith(BROKEN) and not self.tokenizer.bytes:
            return self._settled(text)
        waiting = len(self._window) - self._shown
        return self._give(text, len(self._window)) if text or waiting > _MOST_EMPTY else ""

    def _settled(self, text: str) -> str:
        """The final part of a text that ends in an incomplete character, or in invalid bytes.

        Empty while few tokens wait; then the decoding of the first of them, unless that ends within
        a character.
        """
        upto = len(self._window) - _MOST_INCOMPLETE
        if upto - self._shown <= _MOST_INCOMPLETE:
            return ""
        begun = self._text_up_to(upto)
        return self._give(begun, upto) if text.startswith(begun) and len(begun) < len(text) else ""

    def _is_text(self, token: int) -> bool:
        return (
            token not in self.tokenizer.silent
            and self.tokenizer.fast.id_to_token(token) is not None
        )

    def _text_up_to(self, end: int) -> str:
        """The text, not yet shown, of the window's tokens up to `end`."""
        if end == self._shown:
            return ""
        return added_text(
            self.tokenizer, self._window[: self._shown], self._window[self._shown : end]
        )

    def _give(self, text: str, end: int) -> str:
        """The part of `text`, the window's text up to `end`, whose clean-up is final."""
        self._window, self._shown, self._run = self._window[self._shown :], end - self._shown, None
        text = self._rest + text
        known = self.tokenizer.tidied_length(text)
        self._rest = text[known:]
        return self.tokenizer.tidy(text[:known])


@final
@dataclass
class _ByteRun:
    """Byte tokens in a row: characters while all are valid UTF-8, else a replacement character
    each.
    """

    tokenizer: Tokenizer
    before: list[int]  # the tokens that the last character is decoded after
    characters: str = ""
    last: list[int] = field(default_factory=list)  # tokens of a character that is incomplete
    count: int = 0
    # None after an invalid byte
    utf8: IncrementalDecoder | None = field(default_factory=getincrementaldecoder("utf-8"))

    def push(self, token: int, byte: int) -> None:
        """Take one more token."""
        self.count += 1
        self.last.append(token)
        try:
            complete = self.utf8 is not None and self.utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self.utf8, complete = None, False
        if complete:
            added = added_text(self.tokenizer, self.before, self.last)
            self.characters += added
            before = self.last if added else [*self.before, *self.last]
            self.before, self.last = before[-_MOST_EMPTY:], []

    def text(self, most_broken: int | None) -> str:
        """The decoding of the tokens so far; if invalid, at most `most_broken` replacement
        characters.
        """
        if not self.last:
            return self.characters
        return BROKEN * (self.count if most_broken is None else min(self.count, most_broken))


def added_text(tokenizer: Tokenizer, before: list[int], tokens: list[int]) -> str:
    """The text that `tokens` add to the text of `before`, without clean-up."""
    return tokenizer.raw(before + tokens)[len(tokenizer.raw(before)) :]
