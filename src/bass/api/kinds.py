"""The table of kinds of strategies: registries, options, `bass list`, entry points and messages are
derived from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.drafters import DRAFTERS
from bass.interfaces import (
    AttentionBackend,
    DraftLengthPolicy,
    DraftMethod,
    KVCache,
    Quantization,
    StopRule,
    Verifier,
)
from bass.policies import POLICIES
from bass.quantization import QUANTIZATIONS
from bass.stop_rules import STOP_RULES
from bass.verifiers import VERIFIERS

_VIEW = "view_type: ClassVar[type] = PaddedView` or the type that `{}` instead"


@final
@dataclass(frozen=True)
class Kind:
    """One kind of strategy.

    about: what such a strategy decides. group: entry-point group of installed packages. as_class:
    the class itself is used, since the engine creates the objects. required: class attributes that
    a class must declare, with type and syntax. only_in_python: classes without a name, and why.
    """

    name: str
    interface: type
    registry: Mapping[str, type]
    group: str
    about: str
    as_class: bool = False
    required: Mapping[str, tuple[type, str]] = field(default_factory=dict)
    only_in_python: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The name with spaces, for messages."""
        return self.name.replace("_", " ")


def _claims(*names: str) -> dict[str, tuple[type, str]]:
    """Required class attributes of type bool."""
    return {name: (bool, f"{name}: ClassVar[bool] = True` or `= False`") for name in names}


_ORACLE = "`Oracle(trace)` of `bass.policies`, since it needs a recorded trace"
_RECORDED = "`Recorded(policy, into)` of `bass.policies`, since it needs a list to fill"
_ROWS = (
    Kind(
        "policy",
        DraftLengthPolicy,
        POLICIES,
        "bass.policies",
        "how many tokens to draft",
        required=_claims("constant_length"),
        only_in_python={"oracle": _ORACLE, "recorded": _RECORDED},
    ),
    Kind("stop_rule", StopRule, STOP_RULES, "bass.stop_rules", "what ends a draft early"),
    Kind(
        "drafter",
        DraftMethod,
        DRAFTERS,
        "bass.drafters",
        "what proposes tokens",
        required=_claims("batch_invariant"),
    ),
    Kind(
        "verifier",
        Verifier,
        VERIFIERS,
        "bass.verifiers",
        "which drafted tokens to accept",
        required=_claims("lossless", "coupled", "judges_jointly"),
    ),
    Kind(
        "cache",
        KVCache,
        CACHES,
        "bass.caches",
        "layout of keys and values",
        as_class=True,
        required={"view_type": (type, _VIEW.format("view` gives"))},
    ),
    Kind(
        "attention",
        AttentionBackend,
        BACKENDS,
        "bass.attention",
        "backend that attends to a cache",
        required={"view_type": (type, _VIEW.format("run` attends to"))} | _claims("capturable"),
    ),
    Kind(
        "quantization",
        Quantization,
        QUANTIZATIONS,
        "bass.quantizations",
        "how the matrices of the blocks, and a draft's head, are held in fewer bytes",
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ROWS}
