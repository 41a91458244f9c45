"""Checks of the lengths that a policy returns."""

from typing import Any

import numpy as np

from bass.errors import PolicyError
from bass.interfaces.policy import DraftLengthPolicy


def captured_lengths(policy: DraftLengthPolicy[Any]) -> tuple[int, ...]:
    """The policy's `draft_lengths`, 0 and `max_length`, ascending. Raises `PolicyError`."""
    most, name = int(policy.max_length), type(policy).__name__
    try:
        lengths = {int(length) for length in policy.draft_lengths}
    except (TypeError, ValueError) as error:
        raise PolicyError(
            f"`{name}.draft_lengths` holds something that is no integer ({error}): give the "
            "lengths that the policy may request."
        ) from error
    if lengths and not (min(lengths) >= 0 and max(lengths) <= most):
        bad = next(length for length in sorted(lengths) if not 0 <= length <= most)
        raise PolicyError(
            f"`{name}.draft_lengths` holds {bad}; every length must be between 0 and its "
            f"`max_length={most}`."
        )
    return tuple(sorted({0, most, *lengths}))


def requested_lengths(policy: DraftLengthPolicy[Any], state: Any, batch: int) -> list[int]:
    """The policy's lengths of `batch` rows, checked: each in 0..max_length."""
    answer = policy.lengths(state)
    try:
        lengths = np.asarray(answer)
    except Exception as error:  # an arbitrary object may raise any error
        raise PolicyError(
            f"{_lengths_of(policy)} returned an object that is no NumPy array ({error}); give "
            f"integers of shape [{batch}]."
        ) from error
    if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
        raise PolicyError(
            f"{_lengths_of(policy)} returned {lengths.dtype} of shape {list(lengths.shape)}; give "
            f"integers of shape [{batch}]."
        )
    # for a few numbers Python is five times as fast as NumPy
    values, most = lengths.tolist(), policy.max_length
    if min(values) < 0 or max(values) > most:
        bad = next(value for value in values if not 0 <= value <= most)
        raise PolicyError(
            f"{_lengths_of(policy)} returned {bad}; every length must be between 0 and its "
            f"`max_length={most}`."
        )
    return values


def _lengths_of(policy: DraftLengthPolicy[Any]) -> str:
    return f"`{type(policy).__name__}.lengths`"
