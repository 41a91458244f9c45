"""Checks of a drafter's result: a draft of the requested shape, drawn from distributions over the
target's vocabulary.

A verifier trusts the distributions of the draft and of the target. With an invalid one, such as the
NaN of a model that overflows, the output would follow no model's distribution, so the run ends.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from bass.errors import StrategyError
from bass.interfaces import Drafter, DrafterContext, DraftMethod, Verifier, Warp
from bass.interfaces.answers import check_tensor
from bass.ops.batch_state import (
    IMPOSSIBLE_TOKEN,
    NEGATIVE,
    NEGATIVE_LENGTH,
    NOT_FINITE,
    NOT_ONE,
    UNKNOWN_TOKEN,
)
from bass.records import Draft

_OWN = "a drafter reports the distribution that each token was drawn from, after the same warp"
_REASONS = {
    UNKNOWN_TOKEN: (
        "a token outside of the vocabulary",
        "every drafted id must be one of the target's: a table or an index of the drafter is wrong",
    ),
    NEGATIVE_LENGTH: ("a negative length", "a length is a number of drafted tokens, 0 or more"),
    NOT_FINITE: (
        "probabilities that are not finite (NaN or infinity)",
        "the weights of a drafting model are damaged, or its dtype is too narrow for them or for "
        "the `repetition_penalty` (float16 ends at 65,504): "
        'load it again, or give `dtype="bfloat16"` or "float32"',
    ),
    NEGATIVE: ("negative probabilities", _OWN),
    NOT_ONE: ("probabilities that do not sum to 1", _OWN),
    IMPOSSIBLE_TOKEN: ("a token that is reported with the probability 0", _OWN),
}


def check_answer(
    drafter: Drafter, draft: object, requested: Int[Tensor, " batch"], k: int, vocab: int
) -> None:
    """Raise `StrategyError` for a result that is no draft of up to `k` tokens for each row.

    It checks shapes and types, not values.
    """
    name, batch, device = f"`{type(drafter).__name__}.propose`", len(requested), requested.device
    if not isinstance(draft, Draft):
        raise StrategyError(
            f"{name} returned {type(draft).__name__}: return a `bass.records.Draft`."
        )
    tokens, probs = draft.tokens, draft.probs
    columns = tokens.shape[1] if isinstance(tokens, Tensor) and tokens.ndim == 2 else k
    drafted = batch, min(columns, k)
    check_tensor(tokens, f"`tokens` of {name}", "integers", drafted, device)
    check_tensor(draft.lengths, f"`lengths` of {name}", "integers", (batch,), device)
    if probs is not None:
        check_tensor(probs, f"`probs` of {name}", "probabilities", (*drafted, vocab), device)


def in_int64(drafter: Drafter, draft: Draft, requested: Int[Tensor, " batch"]) -> Draft:
    """The draft with its integers in 64 bits.

    On a CPU, where values can be read, raises `StrategyError` for a row with more tokens than
    columns.
    """
    draft = Draft(draft.tokens.to(torch.int64), draft.probs, draft.lengths.to(torch.int64))
    if requested.device.type == "cpu":
        columns, most = draft.tokens.shape[1], int(torch.minimum(draft.lengths, requested).max())
        if most > columns:
            raise StrategyError(
                f"`{type(drafter).__name__}.propose` returned {columns} columns of tokens for a "
                f"row of {most} drafted tokens: return {most} columns."
            )
    return draft


def built(method: DraftMethod, context: DrafterContext) -> Drafter:
    """The drafter that a method builds for a run. Raises `StrategyError` if it builds none."""
    drafter = method.build(context)
    if not isinstance(drafter, Drafter):
        raise StrategyError(
            f"`{type(method).__name__}.build` returned {type(drafter).__name__}: return an "
            "object of a subclass of `bass.interfaces.Drafter`."
        )
    return drafter


def invalid_draft(drafter: Drafter, flag: int) -> StrategyError:
    """The error for a draft with this flag, which is not 0."""
    reason, cause = next(text for bit, text in _REASONS.items() if flag & bit)
    label = drafter.label
    return StrategyError(f"{label[0].upper()}{label[1:]} returned a draft with {reason}: {cause}.")


def invalid_target(warp: Warp, verifier: Verifier, flag: int) -> StrategyError:
    """The error for a distribution of the target with this flag, which is not 0.

    The flag is of the distributions after the call of the verifier.
    """
    reason = next(text for bit, (text, _) in _REASONS.items() if flag & bit)
    return StrategyError(
        f"A distribution of the target has {reason}: `{type(warp).__name__}` must return finite "
        "probabilities that sum to 1, unless the target's logits are NaN or a `repetition_penalty` "
        "takes them out of the range of float16, and "
        f"`{type(verifier).__name__}` must not write to `target_probs`."
    )
