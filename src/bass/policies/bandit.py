"""A bandit whose arms are the draft lengths, separately for each number of active rows."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.option import within


@dataclass(frozen=True)
class BanditState:
    """Pulls, committed tokens and seconds by number of active rows (0..B) and arm, and the active
    rows.
    """

    sums: np.ndarray  # float [3, B+1, arms]
    active: np.ndarray  # bool [B]


@final
@dataclass(frozen=True)
class Bandit(DraftLengthPolicy[BanditState]):
    """UCB over the lengths 0..max_length; the context is the number of active rows.

    After BanditSpec (Hou et al., 2025, arXiv 2505.15141; UCB over configurations) and Nightjar
    (2025, arXiv 2512.22420; the batch size is a context, and no speculation an arm). With n_k pulls
    of arm k among n of this context:

        r_k = committed tokens / seconds of the arm's steps, over the best arm's (at most 1)
        k   = argmax of  r_k + width sqrt(2 ln(n) / n_k)

    Rates are ratios of sums. Arms without a pull come first, in ascending order. A step counts for
    the arm of its longest draft. A step without a time counts as one second. Cost: a table
    [B+1, max_length + 1], copied at each update. It has no prior, so it tries every arm in every
    context, at full cost for each number of rows.
    """

    paper: ClassVar[str] = "Hou et al., 2025 (BanditSpec); Nightjar, 2025"

    width: float = within("[0, inf)", 0.1)
    max_length: int = within("[0, inf)", 8)

    def init(self, batch_size: int) -> BanditState:
        empty = np.zeros((3, batch_size + 1, self.max_length + 1))
        return BanditState(empty, np.ones(batch_size, dtype=bool))

    def lengths(self, state: BanditState) -> np.ndarray:
        pulls, tokens, seconds = state.sums[:, int(state.active.sum())]
        if not pulls.all():
            k = int(np.argmin(pulls > 0))
        else:
            reward = tokens / seconds
            k = int(
                np.argmax(
                    reward / max(reward.max(), 1e-30)
                    + self.width * np.sqrt(2 * np.log(pulls.sum()) / pulls)
                )
            )
        return np.full(len(state.active), k, dtype=np.int32)

    def update(self, state: BanditState, feedback: Feedback) -> BanditState:
        rows = int(feedback.active.sum())
        if not rows:
            return state
        # The requested length counts. Otherwise a draft that a row's limit clips would leave its
        # arm without a pull forever.
        requested, context = int(self.lengths(state)[0]), int(state.active.sum())
        committed = feedback.accepted[feedback.active].sum() + rows
        seconds = feedback.seconds if feedback.seconds > 0 else 1.0
        sums = state.sums.copy()
        sums[:, context, requested] += 1, committed, seconds
        return BanditState(sums, feedback.active.copy())

    def reset(self, state: BanditState, rows: np.ndarray) -> BanditState:
        active = state.active.copy()
        active[rows] = True
        return BanditState(state.sums, active)
