"""Text to token ids and back: tokenizers, streaming, stop strings, chat templates."""

from bass.text.conversation import ChatTemplates
from bass.text.pairing import check_same_tokenizer
from bass.text.stream import StopStrings, TextStream, Transcript
from bass.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplates",
    "StopStrings",
    "TextStream",
    "Tokenizer",
    "Transcript",
    "check_same_tokenizer",
]
