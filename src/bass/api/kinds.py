"""The table of kinds of strategies: registries, options, `bass list`, entry points and messages are
derived from it.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

_VIEW = "view_type: ClassVar[type] = PaddedView` or the type that `{}` instead"


@final
@dataclass(frozen=True)
class Kind:
    """One kind of strategy; its classes load torch, so they are imported on use.

    base: its interface in `bass.interfaces`. table: module and name of its registry. group:
    entry-point group of installed packages. about: what such a strategy decides. as_class: the
    class itself is used, since the engine creates the objects. required: class attributes that a
    class must declare, with type and syntax. only_in_python: classes without a name, and why.
    """

    name: str
    base: str
    table: str
    group: str
    about: str
    as_class: bool = False
    required: Mapping[str, tuple[type, str]] = field(default_factory=dict)
    only_in_python: Mapping[str, str] = field(default_factory=dict)

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
        module, _, name = self.table.partition(":")
        return getattr(importlib.import_module(module), name)


def _claims(*names: str) -> dict[str, tuple[type, str]]:
    """Required class attributes of type bool."""
    return {name: (bool, f"{name}: ClassVar[bool] = True` or `= False`") for name in names}


_ORACLE = "`Oracle(trace)` of `bass.policies`, since it needs a recorded trace"
_RECORDED = "`Recorded(policy, into)` of `bass.policies`, since it needs a list to fill"
_ROWS = (
    Kind(
        "policy",
        "DraftLengthPolicy",
        "bass.policies:POLICIES",
        "bass.policies",
        "how many tokens to draft",
        required=_claims("constant_length"),
        only_in_python={"oracle": _ORACLE, "recorded": _RECORDED},
    ),
    Kind(
        "stop_rule",
        "StopRule",
        "bass.stop_rules:STOP_RULES",
        "bass.stop_rules",
        "what ends a draft early",
    ),
    Kind(
        "drafter",
        "DraftMethod",
        "bass.drafters:DRAFTERS",
        "bass.drafters",
        "what proposes tokens",
        required=_claims("batch_invariant"),
    ),
    Kind(
        "verifier",
        "Verifier",
        "bass.verifiers:VERIFIERS",
        "bass.verifiers",
        "which drafted tokens to accept",
        required=_claims("lossless", "coupled", "judges_jointly"),
    ),
    Kind(
        "cache",
        "KVCache",
        "bass.caches:CACHES",
        "bass.caches",
        "layout of keys and values",
        as_class=True,
        required={"view_type": (type, _VIEW.format("view` gives"))},
    ),
    Kind(
        "attention",
        "AttentionBackend",
        "bass.attention:BACKENDS",
        "bass.attention",
        "backend that attends to a cache",
        required={"view_type": (type, _VIEW.format("run` attends to"))} | _claims("capturable"),
    ),
    Kind(
        "quantization",
        "Quantization",
        "bass.quantization:QUANTIZATIONS",
        "bass.quantizations",
        "how the matrices of the blocks, and a draft's head, are held in fewer bytes",
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ROWS}
