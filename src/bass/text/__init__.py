"""Text to token ids and back: tokenizers, streaming, chat templates."""

from bass.text.chat import ChatTemplates
from bass.text.pairing import check_same_tokenizer
from bass.text.stream import TextStream
from bass.text.tokenizer import Tokenizer

__all__ = ["ChatTemplates", "TextStream", "Tokenizer", "check_same_tokenizer"]
