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
    if any(report.flags) and (found := max(flags % TARGET for flags in report.flags)):
        raise invalid_draft(step.drafter, found)


def check_accepted(step: Step, report: StepReport, serving: list[int]) -> None:
    """Raise `StrategyError` if a verdict accepts fewer than 0 tokens, or more than were drafted.

    Such a count would stall its row or corrupt its text.
    """
    rows = zip(serving, report.verdict, report.drafted, strict=True)
    for request, accepted, drafted in rows:
        if not 0 <= accepted <= drafted and request >= 0:
            raise StrategyError(
                f"`{type(step.verifier).__name__}` accepted {accepted} of {drafted} drafted "
                "tokens: return a count from 0 to the number of drafted tokens."
            )


def check_prefix(step: Step, report: StepReport) -> None:
    """Raise `StrategyError` if a verdict accepts other tokens than the drafted ones, of which the
    caches would hold no keys and values.
    """
    text = report.text
    if columns := text.draft_tokens.shape[1]:
        same = text.tokens[:, :columns] == text.draft_tokens
        accepted = np.arange(columns) < np.array(report.accepted)[:, None]
        if (accepted & ~same).any():
            raise StrategyError(
                f"`{type(step.verifier).__name__}` returned other tokens than the draft's as "
                "accepted: return the accepted tokens as drafted, then the next one."
            )


def check_emitted(step: Step, report: StepReport, rows: list[int]) -> None:
    """Raise for emitted token ids outside the vocabulary and for invalid target distributions.

    rows: the rows to check. A report may hold anything after a row's emitted and drafted tokens.
    """
    tokens, impossible = report.text.tokens, np.isnan(report.text.logprobs)
    if not any(report.flags) and not impossible.any():
        return  # an id outside the vocabulary has the log-probability NaN
    column = np.arange(tokens.shape[1])
    served = np.isin(np.arange(len(tokens)), rows)
    emitted = served[:, None] & (column < np.array(report.emitted)[:, None])
    size = step.vocab_size
    known = (tokens >= 0) & (tokens < size)  # False for ids outside the vocabulary
    unknown = tokens[emitted & ~known]
    if len(unknown):
        raise StrategyError(
            f"`{type(step.verifier).__name__}` emitted the token id {unknown[0]}, which is outside "
            f"of the vocabulary: ids go from 0 to {size - 1}."
        )
    judged = emitted
    if step.verifier.judges_jointly:
        judged = served[:, None] & known & (column <= np.array(report.drafted)[:, None])
    if (impossible & judged).any():
        raise CheckpointError(
            "The target's logits are not finite (NaN or infinity): its weights are damaged, or "
            "its dtype is too narrow."
        )
    if found := max((np.array(report.flags) // TARGET * served).tolist()):
        raise invalid_target(step.warp, step.verifier, found)
