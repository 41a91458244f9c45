"""Checks of a step's report on the host; each raises for a report that cannot be valid."""

import numpy as np

from bass.drafters.validity import invalid_draft, invalid_target
from bass.engine.step import Step, StepReport
from bass.errors import CheckpointError, StrategyError
from bass.ops.batch_state import TARGET


def check_draft(step: Step, report: StepReport) -> None:
    """Raise `StrategyError` for an invalid draft distribution.

    The engine then emits nothing of this step or of a step launched after it.
    """
    if found := max((report.flags % TARGET).tolist()):
        raise invalid_draft(step.drafter, found)


def check_accepted(step: Step, report: StepReport, serving: np.ndarray) -> None:
    """Raise `StrategyError` if a verdict accepts fewer than 0 tokens, or more than were drafted.

    Such a count would stall its row or corrupt its text.
    """
    if ((report.verdict >= 0) & (report.verdict <= report.drafted)).all():
        return
    counts = serving, report.verdict, report.drafted
    for request, accepted, drafted in zip(*(c.tolist() for c in counts), strict=True):
        if request >= 0 and not 0 <= accepted <= drafted:
            raise StrategyError(
                f"`{type(step.verifier).__name__}` accepted {accepted} of {drafted} drafted "
                "tokens: return a count from 0 to the number of drafted tokens."
            )


def check_prefix(step: Step, report: StepReport) -> None:
    """Raise `StrategyError` if a verdict accepts other tokens than the drafted ones, of which the
    caches would hold no keys and values.
    """
    if columns := report.draft_tokens.shape[1]:
        same = report.tokens[:, :columns] == report.draft_tokens
        accepted = np.arange(columns) < report.accepted[:, None]
        if (accepted & ~same).any():
            raise StrategyError(
                f"`{type(step.verifier).__name__}` returned other tokens than the draft's as "
                "accepted: return the accepted tokens as drafted, then the next one."
            )


def check_emitted(step: Step, report: StepReport, rows: list[int]) -> None:
    """Raise for emitted token ids outside the vocabulary and for invalid target distributions.

    rows: the rows to check. A report may hold anything after a row's emitted and drafted tokens.
    """
    if not report.flags.any() and not np.isnan(report.logprobs).any():
        return  # an id outside the vocabulary has the log-probability NaN
    column = np.arange(report.tokens.shape[1])
    served = np.isin(np.arange(len(report.tokens)), rows)
    emitted = served[:, None] & (column < report.emitted[:, None])
    size = step.vocab_size
    known = (report.tokens >= 0) & (report.tokens < size)  # False for ids outside the vocabulary
    unknown = report.tokens[emitted & ~known]
    if len(unknown):
        raise StrategyError(
            f"`{type(step.verifier).__name__}` emitted the token id {unknown[0]}, which is outside "
            f"of the vocabulary: ids go from 0 to {size - 1}."
        )
    judged = emitted
    if step.verifier.judges_jointly:
        judged = served[:, None] & known & (column <= report.drafted[:, None])
    if (np.isnan(report.logprobs) & judged).any():
        raise CheckpointError(
            "The target's logits are not finite (NaN or infinity): its weights are damaged, or "
            "its dtype is too narrow."
        )
    if found := max((report.flags // TARGET * served).tolist()):
        raise invalid_target(step.warp, step.verifier, found)
