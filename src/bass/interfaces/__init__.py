"""The design: the contract of each part.

Two rules hold everywhere and replace most of the bookkeeping:

    A query at absolute position p attends to cache positions 0..p of its own row, and to nothing
    else. The last committed token of a row has not yet been fed to the target.

One step of row b, which has `lens` committed tokens, looks as below. A rejected token needs no
clean-up: its key lies at or above the first position of the next window, and is overwritten before
any query can see it.

    position     0 ............ lens-2   lens-1   lens .. lens-1+k
    target       [ keys in the cache ] [ last    d1    ..   dk    ]   the window; -1: no token here
    scores                               lens  lens+1 .. lens+k       k+1 distributions, of the
                                                                      positions that follow

Subclass the base classes explicitly: an incomplete class then fails at construction. A strategy is
a final frozen dataclass of hyper-parameters; state that evolves is a separate value. To change one
behaviour of a class, wrap it. `paper` is the source of a method, for `bass list`.

B = batch, W = window (k+1 when verifying), V = vocabulary, S = span: an upper bound on the
positions in use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bass.interfaces.attention import AttentionBackend, Plan
    from bass.interfaces.cache import ForwardingRowStore, KVCache, RowStore, View
    from bass.interfaces.drafting import (
        Drafter,
        DrafterContext,
        DraftMethod,
        Draw,
        LayerCache,
        Scorer,
        StopRule,
    )
    from bass.interfaces.model import Attend, Decoder, Quantization
    from bass.interfaces.policy import DraftLengthPolicy, State
    from bass.interfaces.verification import DraftTrim, Verifier, Warp

__all__ = [
    "Attend",
    "AttentionBackend",
    "Decoder",
    "DraftLengthPolicy",
    "DraftMethod",
    "DraftTrim",
    "Drafter",
    "DrafterContext",
    "Draw",
    "ForwardingRowStore",
    "KVCache",
    "LayerCache",
    "Plan",
    "Quantization",
    "RowStore",
    "Scorer",
    "State",
    "StopRule",
    "Verifier",
    "View",
    "Warp",
]

# in the order of search: a policy needs no torch
_HOMES = ("policy", "verification", "cache", "attention", "model", "drafting")


def __getattr__(name: str) -> Any:
    """Import an interface on first use."""
    for home in _HOMES if name in __all__ else ():
        module = importlib.import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
