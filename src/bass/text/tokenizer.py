"""The tokenizer of a checkpoint folder."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from tokenizers import Tokenizer as FastTokenizer

from bass.checkpoints.folder import refuse_pointer
from bass.errors import CheckpointError
from bass.text.conversation import ChatTemplates, plain_text
from bass.text.folder import assemble, optional_json, source

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@final
@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, by the checkpoint's files."""

    fast: FastTokenizer
    chat: ChatTemplates = field(default_factory=ChatTemplates)

    @classmethod
    def read(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint folder, None without one. Raises `CheckpointError`."""
        file = source(folder)
        if file is None:
            return None
        refuse_pointer(folder / file)
        settings = optional_json(folder / "tokenizer_config.json")
        try:
            fast, special = assemble(folder, file, settings)
            chat = ChatTemplates.read(folder, settings, special)
        except CheckpointError:
            raise
        except Exception as error:  # the libraries raise errors of many types
            raise CheckpointError(
                f"`{folder / file}`, or a file next to it, is not a readable tokenizer "
                f"({' '.join(str(error).split()) or type(error).__name__}): download it again."
            ) from error
        return cls(fast, chat)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the special tokens that the checkpoint adds.

        A text that already begins with the beginning-of-sequence token gets no second one.
        """
        encoded = self.fast.encode(text, add_special_tokens=add_special_tokens)
        ids = encoded.ids
        begins_twice = ids[:1] == ids[1:2] and encoded.special_tokens_mask[:2] == [1, 0]
        return ids[begins_twice:]

    def prompt_of(self, messages: Sequence[Mapping[str, Any]]) -> str | list[int]:
        """The prompt up to the assistant's turn: ids of the chat template, else plain text."""
        if not self.has_template:
            return plain_text(messages)
        return self.encode(self.chat.render(messages), add_special_tokens=False)

    @property
    def has_template(self) -> bool:
        """Whether the checkpoint has a chat template for conversations."""
        return "default" in self.chat.templates

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, without special tokens. Spaces stay, as of all byte-pair tokenizers."""
        return self.fast.decode(ids, skip_special_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id, including added tokens."""
        return self.fast.get_vocab(with_added_tokens=True)

    @functools.cached_property
    def silent(self) -> Mapping[int, str]:
        """Id -> token of the special tokens, which are no text in what is decoded."""
        added = self.fast.get_added_tokens_decoder()
        return {index: token.content for index, token in added.items() if token.special}

    @functools.cached_property
    def bytes(self) -> frozenset[int]:
        """Ids of the tokens for single bytes, which the decoder combines to characters."""
        decoder = self.fast.decoder
        if decoder is None or '"ByteFallback"' not in decoder.__getstate__().decode():
            return frozenset()
        return frozenset(i for token, i in self.vocabulary.items() if _BYTE.fullmatch(token))
