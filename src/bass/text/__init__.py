"""Text to token ids and back: tokenizers, streaming, stop strings, chat templates."""

from bass.text.chat import ChatTemplates
from bass.text.pairing import check_same_tokenizer
from bass.text.stops import StopStrings
from bass.text.stream import TextStream
from bass.text.tokenizer import Tokenizer
from bass.text.transcript import Transcript

__all__ = [
    "ChatTemplates",
    "StopStrings",
    "TextStream",
    "Tokenizer",
    "Transcript",
    "check_same_tokenizer",
]
