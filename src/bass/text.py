"""Text to token ids and back."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from tokenizers import Tokenizer as FastTokenizer

from bass.errors import CheckpointError, PairingError, RequestError

_BROKEN = "\N{REPLACEMENT CHARACTER}"


@final
@dataclass(frozen=True)
class Tokenizer:
    """A checkpoint's `tokenizer.json`."""

    fast: FastTokenizer

    @classmethod
    def read(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint folder; None where it has none, and only token ids can be used."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            fast = FastTokenizer.from_file(str(path))
            fast.no_truncation()  # a stored setting of somebody's training run; prompts are taken whole
            fast.no_padding()
            return cls(fast)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"`{path}` is not a readable tokenizer ({error}): download it again.") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens that the checkpoint adds."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError("The text holds half of a surrogate pair, which is no character: give text that is valid Unicode.")
        return self.fast.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self.fast.decode(ids, skip_special_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id, added tokens included."""
        return self.fast.get_vocab(with_added_tokens=True)


@dataclass
class TextStream:
    """Turns tokens into text as they come, and never into half a character."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    _start: int = 0  # the ids from here on are decoded together: an id's text can depend on the one before it
    _shown: int = 0  # of those, how many are in the text already given out

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        self.ids.append(token)
        before = self.tokenizer.decode(self.ids[self._start : self._shown])
        after = self.tokenizer.decode(self.ids[self._start :])
        if after.endswith(_BROKEN) or len(after) <= len(before):
            return ""
        self._start, self._shown = self._shown, len(self.ids)
        return after[len(before) :]

    def flush(self) -> str:
        """The text still held back; an incomplete character becomes a replacement character."""
        before = self.tokenizer.decode(self.ids[self._start : self._shown])
        after = self.tokenizer.decode(self.ids[self._start :])
        self._start, self._shown = self._shown, len(self.ids)
        return after[len(before) :]


def check_same_tokenizer(target: Tokenizer | None, draft: Tokenizer | None) -> None:
    """Refuse a target and a draft whose token ids mean different things, and say what differs."""
    if target is None or draft is None:
        return
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours != theirs:
        token = min((t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)), key=lambda t: ours.get(t, theirs.get(t, 0)))
        raise PairingError(
            f"Target and draft have different tokenizers: token {token!r} is {ours.get(token)} in the target's and "
            f"{theirs.get(token)} in the draft's. Use a draft that was trained with the target's tokenizer."
        )
