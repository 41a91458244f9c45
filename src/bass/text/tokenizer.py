"""The tokenizer of a checkpoint folder."""

import contextlib
import functools
import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from bass.checkpoints.folder import refuse_pointer
from bass.errors import CheckpointError, RequestError
from bass.text.chat import ChatTemplates
from bass.text.folder import MERGES, assemble, source
from bass.text.limits import MOST_WRITTEN, grown
from bass.text.quiet import quiet
from bass.text.special import optional_json
from bass.text.timed import within

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_GRAVE = (KeyboardInterrupt, SystemExit, MemoryError)
ENCODING_SECONDS, SECONDS_PER_CHARACTER = 1.5, 1e-5  # ten times the time of a slow tokenizer
DECODING_SECONDS = 1.8  # of every token once; 262,144 tokens of the usual decoders take 0.4
DECODED_AT_ONCE = 1024  # tokens between two checks of the time
USUAL_LENGTH = 256  # characters; the longest tokens of most vocabularies have 64 to 128
_SPACED = (
    {f" {mark}": mark for mark in (".", "?", "!", ",")}
    | {" ' ": "'"}
    | {f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")}
)

_MOST_TAKEN = 3  # spaces before punctuation that the clean-up considers


@final
@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, by the checkpoint's files.

    `source`: the file with the vocabulary.
    """

    fast: FastTokenizer
    source: str = "tokenizer.json"
    clean_up: bool = False  # decoded text has no space before punctuation
    chat: ChatTemplates = field(default_factory=ChatTemplates)

    @classmethod
    def read(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint folder.

        None if it has none; then only token ids can be used.
        """
        file = source(folder)
        if file is None:
            return None
        settings = optional_json(folder / "tokenizer_config.json")
        try:
            with quiet():
                fast, special = assemble(folder, file, settings)
                _try(fast, folder / file)
            return cls(
                fast,
                file,
                _cleans_up(fast, settings),
                ChatTemplates.read(folder, settings, special),
            )
        except (CheckpointError, *_GRAVE):
            raise
        # the library raises Exception, and panics that are only BaseException
        except BaseException as error:
            for name in (file, MERGES):
                refuse_pointer(folder / name)
            reason = (
                " ".join(str(error.strerror if isinstance(error, OSError) else error).split())
                or type(error).__name__
            )
            raise CheckpointError(
                f"`{folder / file}` is not a readable tokenizer ({reason}): download it again."
            ) from error

    def cannot_fit(self, text: str, tokens: int) -> bool:
        """Whether a text is too long for `most` tokens, without encoding it: by the longest token,
        of at least `USUAL_LENGTH` characters.
        """
        return len(text) > tokens * USUAL_LENGTH and len(text) > tokens * self._longest

    def encode(
        self, text: str, add_special_tokens: bool = True, most: int | None = None
    ) -> list[int]:
        """Token ids of `text`, with the special tokens that the checkpoint adds.

        A text that already begins with the beginning-of-sequence token gets no second one. most:
        the largest number of tokens; a text that `cannot_fit` is an error before it is encoded.
        Raises `RequestError` or `CheckpointError`.
        """
        if most is not None and self.cannot_fit(text, most):
            raise RequestError(
                f"A text has {len(text):,} characters, and the {most:,} tokens of the context hold "
                "fewer: shorten it."
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError(
                "The text holds a lone surrogate, which is not a character: give text that is "
                "valid Unicode."
            )
        if len(text) * self._growth > MOST_WRITTEN:
            raise RequestError(
                f"The text has {len(text):,} characters, which may become more than "
                f"{MOST_WRITTEN:,} before they are encoded: shorten it."
            )
        seconds = ENCODING_SECONDS + len(text) * SECONDS_PER_CHARACTER
        try:
            with quiet():
                [encoded] = within(
                    seconds,
                    lambda: self.fast.encode_batch([text], add_special_tokens=add_special_tokens),
                )
            return encoded.ids[_begins_twice(encoded) :]
        except _GRAVE:
            raise
        except TimeoutError as error:
            raise CheckpointError(
                f"The tokenizer of the checkpoint takes more than {seconds:.1f} seconds for a text "
                f"of {len(text):,} characters: its "
                "patterns are too slow, so use another checkpoint."
            ) from error
        except BaseException as error:  # as above
            raise CheckpointError(
                f"The tokenizer of the checkpoint cannot encode the text ({error}): download it "
                "again."
            ) from error

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, without special tokens."""
        return self.tidy(self.raw(ids))

    def raw(self, ids: list[int]) -> str:
        """Text of `ids` before the clean-up of spaces."""
        try:
            return self.fast.decode(ids, skip_special_tokens=True)
        except _GRAVE:
            raise
        except BaseException as error:  # as above
            raise CheckpointError(
                f"The tokenizer of the checkpoint cannot decode its own tokens ({error}): download "
                "it again."
            ) from error

    def tidy(self, text: str) -> str:
        """The decoded text after the checkpoint's clean-up: without spaces before punctuation."""
        if self.clean_up:
            for mark, tidied in _SPACED.items():
                text = text.replace(mark, tidied)
        return text

    def tidied_length(self, text: str) -> int:
        """The length of the prefix of `text` whose clean-up does not depend on later text."""
        if not self.clean_up:
            return len(text)
        # What follows can change an end that begins with a space: of spaces and apostrophes, with
        # the beginning of n't, 've or 're in it.
        begun = text.removesuffix("v").removesuffix("r").rstrip(" '")
        begun = begun.removesuffix("n").rstrip(" '")
        first = text.find(" ", len(begun))
        spaces = len(text) - first - len(text[first:].lstrip(" "))
        return len(text) if first < 0 else first + max(spaces - _MOST_TAKEN, 0)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id, including added tokens."""
        return self.fast.get_vocab(with_added_tokens=True)

    @functools.cached_property
    def _longest(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self.vocabulary), default=0)

    @functools.cached_property
    def _growth(self) -> int:
        """A bound on the characters that one may become before it is encoded."""
        return grown(self.fast.normalizer) * grown(self.fast.pre_tokenizer)

    @functools.cached_property
    def silent(self) -> frozenset[int]:
        """Ids of special tokens, which have no text."""
        return frozenset(
            index for index, token in self.fast.get_added_tokens_decoder().items() if token.special
        )

    @functools.cached_property
    def bytes(self) -> dict[int, int]:
        """Id -> value of the tokens for single bytes, which the decoder combines to characters."""
        if self.fast.decoder is None or "ByteFallback" not in _types(
            json.loads(self.fast.decoder.__getstate__())
        ):
            return {}
        found = {
            index: int(token[3:5], 16)
            for token, index in self.vocabulary.items()
            if _BYTE.fullmatch(token)
        }
        ids = {byte: index for index, byte in found.items()}
        if not {*b"AB"} <= ids.keys() or "AB" in self.raw([ids[byte] for byte in b"AB"]):
            return found
        return {}  # an earlier decoder, such as `WordPiece` or `Fuse`, hides them


def _begins_twice(encoded: Encoding) -> bool:
    """Whether the first token was added to a text that already begins with it."""
    return encoded.ids[:1] == encoded.ids[1:2] and encoded.special_tokens_mask[:2] == [1, 0]


def _try(fast: FastTokenizer, file: Path) -> None:
    """Encode a text and decode every token, so that a panic of the library is found before the
    tokenizer is used. Errors are ignored: they may concern only this text.

    Raises `CheckpointError` if decoding takes long.
    """
    with contextlib.suppress(Exception):
        within(ENCODING_SECONDS, lambda: fast.encode_batch(["", "a b"]))
    late = threading.Event()
    try:
        within(DECODING_SECONDS, lambda: _decode_all(fast, late))
    except TimeoutError as error:
        raise CheckpointError(
            f"`{file}` takes more than {DECODING_SECONDS:.1f} seconds to decode each of its "
            f"{fast.get_vocab_size():,} tokens once, by too many or too slow decoders: use another "
            "checkpoint."
        ) from error
    finally:
        late.set()


def _decode_all(fast: FastTokenizer, late: threading.Event) -> None:
    """Decode every token, until `late` is set."""
    count = fast.get_vocab_size()
    for begin in range(0, count, DECODED_AT_ONCE):
        if late.is_set():
            return
        ids = [[index] for index in range(begin, min(begin + DECODED_AT_ONCE, count))]
        with contextlib.suppress(Exception):
            fast.decode_batch([[], *ids])


def _cleans_up(fast: FastTokenizer, settings: dict[str, Any]) -> bool:
    """Whether decoding cleans up spaces: byte-pair tokenizers keep them unless the checkpoint says
    otherwise.
    """
    insists = bool(
        settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    )
    return bool(settings.get("clean_up_tokenization_spaces")) and (
        insists or not isinstance(fast.model, BPE)
    )


def _types(decoder: Any) -> Iterable[str]:
    """The types of a decoder and of its parts."""
    if isinstance(decoder, dict):
        return [
            decoder.get("type", ""),
            *(name for part in decoder.get("decoders", ()) for name in _types(part)),
        ]
    return []
