"""Draft-length policies by their names for `policy=`.

`Oracle` has no name, since it needs a trace.
"""

from bass.policies.auto import Auto
from bass.policies.bandit import Bandit
from bass.policies.batch_adaptive import BatchAdaptive, RowAdaptive
from bass.policies.batch_table import BatchTable
from bass.policies.context_table import ContextTable
from bass.policies.ema_tiers import EmaTiers
from bass.policies.exp3 import Exp3
from bass.policies.fixed import Fixed
from bass.policies.goodput import Goodput
from bass.policies.hf_heuristic import HuggingFaceHeuristic
from bass.policies.lagged import Lagged
from bass.policies.oracle import Oracle
from bass.policies.row_budget import RowBudget

POLICIES = {
    "auto": Auto,
    "bandit": Bandit,
    "bass": BatchAdaptive,
    "bass-per-row": RowAdaptive,
    "batch-table": BatchTable,
    "context-table": ContextTable,
    "ema-tiers": EmaTiers,
    "exp3": Exp3,
    "fixed": Fixed,
    "goodput": Goodput,
    "hf-heuristic": HuggingFaceHeuristic,
    "lagged": Lagged,
    "per-row-budget": RowBudget,
}
__all__ = [
    "POLICIES",
    "Auto",
    "Bandit",
    "BatchAdaptive",
    "BatchTable",
    "ContextTable",
    "EmaTiers",
    "Exp3",
    "Fixed",
    "Goodput",
    "HuggingFaceHeuristic",
    "Lagged",
    "Oracle",
    "RowAdaptive",
    "RowBudget",
]
