"""Batched speculative decoding of language models.

`bass.load()` gives the embedded pair; `bass.interfaces` holds the whole design.
"""

from bass.errors import BassError
from bass.llm import LLM, load
from bass.results import Completion, Result, Stats, StreamEvent

__all__ = ["LLM", "BassError", "Completion", "Result", "Stats", "StreamEvent", "load"]
