"""Text as its tokens come."""

from dataclasses import dataclass, field

from bass.text.tokenizer import OPENING, Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass
class TextStream:
    """Turns tokens into text as they come, and never into half a character.

    The pieces and the flushed rest make up what the tokenizer decodes the tokens to at once. Where a character is made of
    byte tokens, that takes waiting for the end of their run: a run that is no valid UTF-8 as a whole has no characters.
    """

    tokenizer: Tokenizer
    _window: list[int] = field(default_factory=list)  # decoded together: an id's text can depend on the one before it
    _shown: int = 0  # of those, how many are in the text already given out
    _rest: str = ""  # text that cannot be tidied before it is known what follows

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        if token in self.tokenizer.silent or self.tokenizer.fast.id_to_token(token) is None:
            return ""
        self._window.append(token)
        if token in self.tokenizer.bytes:
            return ""
        before, after = self._decode()
        if len(after) <= len(before) or (after.endswith(_BROKEN) and not self.tokenizer.bytes):
            return ""
        return self._give(after[len(before) :])

    def flush(self) -> str:
        """The text still held back; an incomplete character becomes a replacement character."""
        before, after = self._decode()
        return self._give(after[len(before) :], at_end=True)

    def _decode(self) -> tuple[str, str]:
        return self.tokenizer.raw(self._window[: self._shown]), self.tokenizer.raw(self._window)

    def _give(self, text: str, at_end: bool = False) -> str:
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        if not self.tokenizer.clean_up:
            return text
        text = self._rest + text
        end = len(text) if at_end else len(text.rstrip(OPENING))
        self._rest = text[end:]
        return self.tokenizer.tidy(text[:end])
