"""The table of kinds of strategies, for registries, options, `bass list`, plugins and messages."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Kind:
    """One kind of strategy; its classes load torch, so they are imported on use.

    base: its interface in `bass.interfaces`. group: the package of its classes, and the entry-point
    group of installed packages. table: the package's registry. about: what such a strategy decides.
    as_class: the class itself is used, since the engine creates the objects.
    """

    name: str
    base: str
    group: str
    table: str
    about: str
    as_class: bool = False

    @property
    def words(self) -> str:
        """The name with spaces, for messages."""
        return self.name.replace("_", " ")

    @property
    def interface(self) -> type:
        """The base class of its classes."""
        return getattr(importlib.import_module("bass.interfaces"), self.base)

    @property
    def registry(self) -> Mapping[str, type]:
        """The classes of bass by name."""
        return getattr(importlib.import_module(self.group), self.table)


_ROWS = (
    Kind("policy", "DraftLengthPolicy", "bass.policies", "POLICIES", "how many tokens to draft"),
    Kind("stop_rule", "StopRule", "bass.stop_rules", "STOP_RULES", "what ends a draft early"),
    Kind("drafter", "DraftMethod", "bass.drafters", "DRAFTERS", "what proposes tokens"),
    Kind("verifier", "Verifier", "bass.verifiers", "VERIFIERS", "which drafted tokens to accept"),
    Kind("cache", "KVCache", "bass.caches", "CACHES", "layout of keys and values", as_class=True),
    Kind(
        *("attention", "AttentionBackend", "bass.attention", "BACKENDS"),
        "backend that attends to the cache",
    ),
    Kind(
        *("quantization", "Quantization", "bass.quantization", "QUANTIZATIONS"),
        "how weights are held in fewer bytes",
    ),
)
KINDS = {kind.name: kind for kind in _ROWS}
