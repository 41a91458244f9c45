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
from bass.interfaces.answers import FLOATS, INTEGERS, check_complete, check_dense, dtype_name
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
        "the weights of a drafting model are damaged, or its dtype is too narrow (float16 ends "
        "at 65,504): "
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
    name, batch = f"`{type(drafter).__name__}.propose`", len(requested)
    if not isinstance(draft, Draft):
        raise StrategyError(f"{name} returned {_kind(draft)}: return a `bass.records.Draft`.")
    check_complete(draft, name)
    integers, floats = (INTEGERS, "integers"), (FLOATS, "float32, or None")
    for field, (known, wanted) in {
        "tokens": integers,
        "lengths": integers,
        "probs": floats,
    }.items():
        value = getattr(draft, field)
        if value is None and field == "probs":
            continue
        if not isinstance(value, Tensor):
            raise StrategyError(f"{name} returned {_kind(value)} as `{field}`: return a tensor.")
        check_dense(value, requested.device, f"`{field}` of the draft of {name}")
        if value.dtype not in known:
            raise StrategyError(
                f"{name} returned `{field}` of {dtype_name(value)}: return {wanted}."
            )
    tokens, lengths = [*draft.tokens.shape], [*draft.lengths.shape]
    probs = None if draft.probs is None else [*draft.probs.shape]
    fits = len(tokens) == 2 and tokens[0] == batch and tokens[1] <= k and lengths == [batch]
    if not fits or not (probs is None or (len(probs) == 3 and probs[:2] == tokens)):
        raise StrategyError(
            f"{name} must draft up to {k} tokens for {batch} rows and returned tokens {tokens} "
            f"of lengths {lengths} with probabilities {probs}: return tokens [{batch}, {k}], "
            f"lengths [{batch}], and probabilities with one more axis than tokens, or None."
        )
    if draft.probs is not None and draft.probs.shape[2] != vocab:
        raise StrategyError(
            f"`{type(drafter).__name__}` returned distributions over {draft.probs.shape[2]} "
            f"tokens, and the target has {vocab}: they must be over the same vocabulary."
        )


def in_int64(draft: Draft) -> Draft:
    """The draft with its integers in 64 bits."""
    return Draft(draft.tokens.to(torch.int64), draft.probs, draft.lengths.to(torch.int64))


def built(method: DraftMethod, context: DrafterContext) -> Drafter:
    """The drafter that a method builds for a run. Raises `StrategyError` if it builds none."""
    drafter = method.build(context)
    if not isinstance(drafter, Drafter):
        raise StrategyError(
            f"`{type(method).__name__}.build` returned {_kind(drafter)}: return an object of a "
            "subclass of `bass.interfaces.Drafter`."
        )
    return drafter


def features_of(method: DraftMethod) -> tuple[int, ...]:
    """Which states of the target a method reads.

    Raises `StrategyError` unless they are a tuple or a list of different integers.
    """
    given: object = method.target_features
    if (
        not isinstance(given, tuple | list)
        or not all(isinstance(i, int) and not isinstance(i, bool) for i in given)
        or len({*given}) < len(given)
    ):
        raise StrategyError(
            f"`{type(method).__name__}.target_features` is {given!r:.60}: give a tuple of layers "
            "of the target, integers, each once."
        )
    return tuple(given)


def named(drafter: Drafter) -> str:
    """A drafter's name in messages: its label, or its class if the label is no text."""
    label = drafter.label
    return label if isinstance(label, str) and label else f"`{type(drafter).__name__}`"


def check_columns(drafter: Drafter, draft: Draft, requested: Int[Tensor, " batch"]) -> None:
    """Raise `StrategyError` if a row has more tokens than columns. It reads values: CPU only."""
    columns, most = draft.tokens.shape[1], int(torch.minimum(draft.lengths, requested).max())
    if most > columns:
        raise StrategyError(
            f"`{type(drafter).__name__}.propose` returned {columns} columns of tokens for a row of "
            f"{most} drafted tokens: return {most} columns."
        )


def invalid_draft(drafter: Drafter, flag: int) -> StrategyError:
    """The error for a draft with this flag, which is not 0."""
    reason, cause = next(text for bit, text in _REASONS.items() if flag & bit)
    label = named(drafter)
    return StrategyError(f"{label[0].upper()}{label[1:]} returned a draft with {reason}: {cause}.")


def invalid_target(warp: Warp, verifier: Verifier, flag: int) -> StrategyError:
    """The error for a distribution of the target with this flag, which is not 0.

    The flag is of the distributions after the call of the verifier. Of a warp and a verifier, the
    user's own one is the cause; of two own ones, it names the warp.
    """
    reason = next(text for bit, (text, _) in _REASONS.items() if flag & bit)
    if type(warp).__module__ == "bass.sampling" and not type(verifier).__module__.startswith(
        "bass.verifiers."
    ):
        return StrategyError(
            f"`{type(verifier).__name__}` wrote to `target_probs`, which is read-only: it then has "
            f"{reason}; write to a copy."
        )
    return StrategyError(
        f"`{type(warp).__name__}` returned a distribution of the target with {reason}: a warp must "
        "return finite probabilities that sum to 1, unless the target's logits are NaN."
    )


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__}"
