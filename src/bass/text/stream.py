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

    def push(self, *tokens: int) -> str:
        """The text that the tokens complete; empty while a character is incomplete."""
        whole = self._at_once(tokens) if len(tokens) > 1 else None
        return "".join(map(self._push, tokens)) if whole is None else whole

    def _at_once(self, tokens: tuple[int, ...]) -> str | None:
        """The text of several tokens by one decoding; None where a character may be incomplete after them, or broken."""
        known = [token for token in tokens if self._is_text(token)]
        if not known or known[-1] in self.tokenizer.bytes:
            return None
        window, self._window = self._window, self._window + known
        before, after = self._decode()
        if len(after) <= len(before) or _BROKEN in after[len(before) :]:
            self._window = window
            return None
        return self._give(after[len(before) :])

    def _push(self, token: int) -> str:
        if not self._is_text(token):
            return ""
        self._window.append(token)
        if token in self.tokenizer.bytes:
            return ""
        before, after = self._decode()
        if len(after) <= len(before) or (after.endswith(_BROKEN) and not self.tokenizer.bytes):
            return ""
        return self._give(after[len(before) :])

    def _is_text(self, token: int) -> bool:
        return token not in self.tokenizer.silent and self.tokenizer.fast.id_to_token(token) is not None

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
