"""What a step's report may not say."""

import numpy as np

from bass.drafters.validity import invalid_draft, invalid_target
from bass.engine.step import Step, StepReport
from bass.errors import CheckpointError, StrategyError
from bass.ops.batch_state import TARGET


def check_draft(step: Step, report: StepReport) -> None:
    """Refuse a draft that is no distribution: nothing of its step is emitted, nor of one that was
    launched after it.
    """
    if found := max((report.flags % TARGET).tolist()):
        raise invalid_draft(step.drafter, found)


def check_counts(step: Step, report: StepReport, serving: np.ndarray) -> None:
    """Refuse a verdict of more than was drafted: a row would wait for ever, or its text mean
    nothing.
    """
    columns = serving, report.verdict, report.drafted
    for request, accepted, drafted in zip(*(c.tolist() for c in columns), strict=True):
        if request >= 0 and not 0 <= accepted <= drafted:
            raise StrategyError(
                f"`{type(step.verifier).__name__}` kept {accepted} of {drafted} drafted tokens: a "
                "verdict accepts between 0 and as many as were drafted."
            )


def check_emitted(step: Step, report: StepReport, rows: list[int]) -> None:
    """Refuse tokens that are none, and probabilities of the target that are none, in these rows.

    Beyond the emitted tokens a report may hold anything, and beyond the drafted ones.
    """
    if not report.flags.any() and not np.isnan(report.logprobs).any():
        return  # a token that is none has the log-probability NaN
    column = np.arange(report.tokens.shape[1])
    served = np.isin(np.arange(len(report.tokens)), rows)
    emitted = served[:, None] & (column < report.emitted[:, None])
    size = step.vocab_size
    known = (report.tokens >= 0) & (report.tokens < size)  # others are nobody's
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
        raise invalid_target(step.warp, found)
