"""The type checker of the tests: beartype, for which an int is a float, as it is for every other
checker.

A check takes longer than most of the functions that are checked. So a function is checked at its
first calls in each test function, where wrong types and shapes show, and ever more seldom after
that; in the nightly tier, at every call. The cases of a parametrised test count as one: what
differs between them, such as the strategy, is other functions with counts of their own.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from types import CodeType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

# Calls of a function that are checked, counted anew in each test function: the first ones, then
# each time that there were four times as many. Odd numbers: calls often come in twos or fours.
CHECKED = frozenset({1, 2, 3, 4} | {(13 * 4**n - 1) // 3 for n in range(1, 12)})
EVERY_CALL = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
# in this test function; by code, because a function within a function is made again and again
calls: dict[CodeType, int] = {}
_jaxtyped = jaxtyping.jaxtyped
_test = ""


def begin(test: str) -> None:
    """Count again, unless this is another case of the test before."""
    global _test
    if test != _test:
        calls.clear()
        _test = test


def jaxtyped(fn: Any = None, *, typechecker: Any) -> Any:
    """In place of `jaxtyping.jaxtyped`, which the import hook puts around each function and
    class.
    """
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if not isinstance(fn, type):
        return _now_and_then(fn, typechecker)
    made = vars(fn).get("__init__")
    if dataclasses.is_dataclass(fn) and made is not None and not hasattr(made, "__wrapped__"):
        fn.__init__ = _now_and_then(made, typechecker)
    return fn


def _now_and_then(fn: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    code, checked = fn.__code__, None

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        __tracebackhide__ = True
        calls[code] = count = calls.get(code, 0) + 1
        checks = EVERY_CALL or count in CHECKED
        if not checks or jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if checked is None:  # it takes milliseconds to make, and most functions are not called
            checked = _jaxtyped(fn, typechecker=typechecker)
        return checked(*args, **kwargs)

    return call
