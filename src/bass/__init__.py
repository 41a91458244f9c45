"""Batched speculative decoding of language models.

`bass.load()` returns the embedded pair; `bass.interfaces` describes the design.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bass.errors import BassError

if TYPE_CHECKING:
    from bass.analysis.frames import Run, open_run
    from bass.api.llm import LLM, load
    from bass.api.queue import Arrival
    from bass.api.results import Completion, Result, Stats, StreamEvent

    __version__: str

__all__ = [
    "LLM",
    "Arrival",
    "BassError",
    "Completion",
    "Result",
    "Run",
    "Stats",
    "StreamEvent",
    "load",
    "open_run",
]

_HOMES = (
    dict.fromkeys(("LLM", "load"), "bass.api.llm")
    | {"Arrival": "bass.api.queue"}
    | dict.fromkeys(("Completion", "Result", "Stats", "StreamEvent"), "bass.api.results")
    | dict.fromkeys(("Run", "open_run"), "bass.analysis.frames")
)


def __getattr__(name: str) -> Any:
    """The public names, imported on first use, so that `bass --help` does not load torch."""
    if name == "__version__":  # of the installed distribution: pyproject.toml alone states it
        return importlib.import_module("bass.experiments.provenance").bass_version()
    if name not in _HOMES:
        raise AttributeError(f"module `bass` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)
