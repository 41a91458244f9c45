"""Batched speculative decoding of language models.

`bass.load()` gives the embedded pair; `bass.interfaces` holds the whole design.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bass.errors import BassError

if TYPE_CHECKING:
    from bass.llm import LLM, load
    from bass.results import Completion, Result, Stats, StreamEvent

__all__ = ["LLM", "BassError", "Completion", "Result", "Stats", "StreamEvent", "load"]

_HOMES = {"LLM": "llm", "load": "llm", "Completion": "results", "Result": "results", "Stats": "results", "StreamEvent": "results"}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: torch takes a second, which `bass --help` need not wait for."""
    if name not in _HOMES:
        raise AttributeError(f"module `bass` has no attribute `{name}`")
    return getattr(importlib.import_module(f"bass.{_HOMES[name]}"), name)
