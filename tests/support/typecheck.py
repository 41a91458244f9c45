"""The type checker of the tests: beartype, for which an int is a float, as it is for every other
checker.

A check takes longer than most of the functions that are checked. So a function is checked at its
first calls in each test function, where wrong types and shapes show, and ever more seldom after
that; one without an annotated shape is not checked. In the nightly tier, all are, at every call.
The cases of a parametrised test count as one: what differs between them, such as the strategy, is
other functions with counts of their own.
"""

import dataclasses
import functools
import inspect
import os
import random
from collections.abc import Callable
from types import CodeType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype._check.code import codemain

# It checks one drawn item of a sequence; hypothesis fails a strategy that draws from `random`.
codemain.getrandbits = random.Random(0).getrandbits
check = beartype(conf=BeartypeConf(is_pep484_tower=True))

EVERY_CALL = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
# Calls from one check of a function to the next: the first two are checked, then ever fewer. Odd
# numbers of calls: calls often come in twos or fours.
GAPS = (1, 1) if EVERY_CALL else (1, 1, *(4 * 5**n - 1 for n in range(9)))


class Countdown:
    """Calls of a function that are left until the next check, in this test function."""

    __slots__ = ("checks", "left")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.checks, self.left = 0, 1

    def checked(self) -> None:
        """Start towards the next check."""
        if self.checks == 0:
            started.append(self)
        self.checks += 1
        self.left = GAPS[min(self.checks, len(GAPS) - 1)]


# by code, because a function within a function is made again and again
countdowns: dict[CodeType, Countdown] = {}
started: list[Countdown] = []  # those with a check in this test function
_jaxtyped = jaxtyping.jaxtyped
_begun: set[str] = set()


def begin(test: str) -> None:
    """Count again, unless this is another case of a test: pytest may mix the cases of several."""
    if test not in _begun:
        for countdown in started:
            countdown.reset()
        started.clear()
        _begun.add(test)


# Its first call looks for `jax`: here, since the module finder of `bass` would be checked for it.
_jaxtyped(begin, typechecker=check)


def jaxtyped(fn: Any = None, *, typechecker: Any) -> Any:
    """In place of `jaxtyping.jaxtyped`, which the import hook puts around each function and
    class.
    """
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if not isinstance(fn, type):
        if inspect.isgeneratorfunction(fn):
            return fn  # `torch.inference_mode` would not know it in a wrapper
        if "typing.Self" in repr(getattr(fn, "__annotations__", "")):
            return fn  # beartype knows it within a decorated class alone
        shapes = EVERY_CALL or "jaxtyping" in repr(getattr(fn, "__annotations__", ""))
        return _now_and_then(fn, typechecker) if shapes else fn
    made = vars(fn).get("__init__")
    if dataclasses.is_dataclass(fn) and made is not None and not hasattr(made, "__wrapped__"):
        fn.__init__ = _now_and_then(made, typechecker)
    return fn


def _now_and_then(fn: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    checked, countdown = None, countdowns.setdefault(fn.__code__, Countdown())

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        __tracebackhide__ = True
        countdown.left -= 1  # the way of almost all calls: short, because it is gone so often
        if countdown.left > 0:
            return fn(*args, **kwargs)
        countdown.checked()
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if checked is None:  # it takes milliseconds to make, and most functions are not called
            checked = _jaxtyped(fn, typechecker=typechecker)
        return checked(*args, **kwargs)

    # a frame of the checker's, for whoever looks for a user's code in a traceback
    call.__code__ = call.__code__.replace(co_filename=jaxtyping.__file__)
    return call
