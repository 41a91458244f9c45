"""Every error that a user can cause: one sentence with the request, the fact and the remedy."""

import difflib
import math
import numbers
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

DISTRIBUTION = "bass-decoding"  # in the package index; the import name is `bass`


class BassError(Exception):
    """Base of the errors that the command line prints as one sentence instead of a traceback."""


class CheckpointError(BassError):
    """A checkpoint folder that is missing, damaged, or of an unsupported kind."""


class PairingError(BassError):
    """Two parts that cannot work together: a cache and a backend, a target and a draft."""


class RequestError(BassError, ValueError):
    """A generation request that cannot be served."""


class OptionError(BassError, ValueError):
    """An option or a name that does not exist, or a value outside its range."""


class ProblemsError(OptionError):
    """Several problems of one input.

    Its text has a line about the input, and an indented line for each problem.
    """

    def __init__(self, about: str, problems: Iterable[str]) -> None:
        super().__init__(
            "\n".join([about, *(f"  {' '.join(problem.split())}" for problem in problems)])
        )


class RunFolderError(BassError):
    """A folder of experiments that is missing, damaged, or of another format version."""


class StrategyError(BassError):
    """A strategy that breaks its contract during a run."""


class PolicyError(StrategyError):
    """A draft-length policy that breaks its contract."""


def install(extra: str) -> str:
    """The command that installs an extra of this package, quoted for a message."""
    return f"`pip install '{DISTRIBUTION}[{extra}]'`"


# Texts of torch for a full GPU, for full host memory, and for failed allocations of its libraries.
_NO_ROOM = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it followed, is a failed allocation."""
    while error is not None:
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_ROOM)
        ):
            return True
        error = error.__context__
    return False


@contextmanager
def explained(no_room: Callable[[str], BassError]) -> Iterator[None]:
    """Within it, an allocation that fails raises the error that `no_room` makes of the reason.

    Memory of the failed frames is freed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason, found = "", error
        # the failed frames would keep their tensors for the lifetime of the error
        while found is not None:
            traceback.clear_frames(found.__traceback__)
            reason, found = str(found) or type(found).__name__, found.__context__
        line = reason.splitlines()[0]
        reported, free, _ = line.partition(" is free")  # the rest is advice of the allocator
        raise no_room(reported + free) from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> OptionError:
    """Error for a name that is not registered, with the nearest names and the whole list."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
    return OptionError(f"Unknown {kind} `{name}`.{hint} Known: {', '.join(known) or 'none'}.")


def check_integer(name: str, value: object, least: int | None = None) -> None:
    """Raise `OptionError` unless the value is an integer (no bool) and, with `least`, at least that
    and of 64 bits.
    """
    if least is not None and isinstance(value, numbers.Integral) and abs(int(value)) >= 2**63:
        raise OptionError(f"`{name}` must fit into 64 bits: give a smaller integer.")
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or (least is not None and value < least)
    ):
        raise OptionError(
            f"`{name}={value!r}` must be an "
            f"integer{'' if least is None else f' of {least} or more'}."
        )


def check_ranges(options: object, **intervals: str) -> None:
    """Raise `OptionError` unless fields of `options` are numbers in their intervals, as "(0, 1]".

    A field of several numbers has at least one, and all of them in the interval.
    """
    for name, interval in intervals.items():
        value = getattr(options, name)
        values = value if isinstance(value, list | tuple) else (value,)
        if not values or not all(_within(number, interval) for number in values):
            raise OptionError(f"`{options!r:.200}`: `{name}` must be in {interval}.")


def _within(number: float, interval: str) -> bool:
    least, most = map(float, interval[1:-1].split(","))
    if not is_finite(number):
        return False
    above = number >= least if interval[0] == "[" else number > least
    return above and (number <= most if interval[-1] == "]" else number < most)


def check_flag(name: str, value: object, of: str = "") -> None:
    """Raise `OptionError` unless the value is True or False. of: what it is for, in the message."""
    if not isinstance(value, bool):
        raise OptionError(f"`{name}={value!r:.60}` must be True or False{of}.")


def is_finite(value: object) -> bool:
    """Whether it is a number that a float can hold, and neither infinite nor NaN."""
    exact = isinstance(value, numbers.Rational) and not isinstance(value, numbers.Integral)
    if not isinstance(value, numbers.Real) or exact or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def counted(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def hyphened(word: str) -> str:
    """A word of a command line as `--help` and messages show it; both spellings are parsed."""
    return word.replace("_", "-")


def flag(name: str) -> str:
    """An option of a command line by its name in Python."""
    return hyphened(f"--{name}")
