"""Every error a user can cause: one sentence that says what was asked, what is true, and what to do."""

import difflib
import math
import numbers
from collections.abc import Iterable


class BassError(Exception):
    """Base of the errors that the command line prints as one sentence instead of a traceback."""


class CheckpointError(BassError):
    """A checkpoint folder that is missing, damaged, or of an unsupported kind."""


class PairingError(BassError):
    """Two parts that cannot work together: a cache and a backend, a target and a draft."""


class RequestError(BassError, ValueError):
    """A generation request that cannot be served as asked."""


class OptionError(BassError, ValueError):
    """An option or a name that does not exist, or a value outside its range."""


class StrategyError(BassError):
    """A strategy of whichever kind that breaks its contract while it runs."""


class PolicyError(StrategyError):
    """A draft-length policy that breaks its contract."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> OptionError:
    """Error for a name that is not registered, with the nearest names and the whole list."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
    return OptionError(f"Unknown {kind} `{name}`.{hint} Known: {', '.join(known) or 'none'}.")


def check_integer(name: str, value: object, least: int | None = None) -> None:
    """Refuse what is no integer (a truth value is none), or is below `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and value < least):
        raise OptionError(f"`{name}={value!r}` must be an integer{'' if least is None else f' of {least} or more'}.")


def is_finite(value: object) -> bool:
    """Whether it is a number, and neither infinite nor NaN."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
