"""Every error that a user can cause: one sentence with the request, the fact and the remedy."""

import difflib
import numbers
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

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
    """Several problems of one input: a line about it, and an indented line for each problem."""

    def __init__(self, about: str, problems: Iterable[str]) -> None:
        lines = (f"  {' '.join(problem.split())}" for problem in problems)
        super().__init__("\n".join([about, *lines]))


class RunFolderError(BassError):
    """A folder of experiments that is missing or damaged."""


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


def imported(called: str, load: Callable[[], Any]) -> Any:
    """What `load` imports. Raises `OptionError`, for any error of the user's module."""
    try:
        return load()
    except Exception as error:
        said = str(error)
        if isinstance(error, AttributeError) and error.name:
            near = nearest(error.name, (one for one in dir(error.obj) if one[0] != "_"))
            said += f".{near}" if near else ""
        raise OptionError(
            f"Cannot load {called} ({type(error).__name__}: {said}): give an importable "
            "`package.module:Class`."
        ) from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> OptionError:
    """Error for a name that is not registered, with the nearest names and the whole list."""
    known = sorted(known)
    listed = ", ".join(known) or "none"
    return OptionError(f"Unknown {kind} `{name}`.{nearest(name, known)} Known: {listed}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """A question with the names that are nearly this one, whatever case and punctuation; or ""."""
    spelled = {letters(one): one for one in known}
    near = difflib.get_close_matches(letters(name), spelled, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(f'`{spelled[one]}`' for one in near)}?" if near else ""


def letters(name: str) -> str:
    """A name's letters and digits, in lower case."""
    return re.sub(r"[\W_]", "", name).lower()


def check_number(name: str, value: object, interval: str, hint: Any = int) -> None:
    """Raise `OptionError` unless the value is a number, and no bool, in an interval as "(0, 1]".

    interval: also several, joined by `or`. hint: the annotation, of which `int` needs an integer.
    """
    whole = int in (hint, *get_args(hint))
    number = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, number) or not _within(value, interval):
        kind = "an integer" if whole else "a number"
        raise OptionError(f"`{name}={value!r:.60}` is out of range: give {kind} in {interval}.")


def _within(number: Any, interval: str) -> bool:
    for part in interval.split(" or "):
        least, most = map(float, part[1:-1].split(","))
        above = number >= least if part[0] == "[" else number > least
        if above and (number <= most if part[-1] == "]" else number < most):
            return True
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


# Control characters (C0, DEL, C1), lone surrogates, line and paragraph separators, and invisible
# characters that reorder, hide or annotate text. Joiners and variation selectors stay, since words
# and emoji contain them.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    r"""Untrusted text (of checkpoints, user classes) for a terminal: every character that could
    control it or reorder a line escaped as in Python, `\x1b`, but those in `keep`.
    """

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return _STEERING.sub(escaped, text)
