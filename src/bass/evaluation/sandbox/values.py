"""Plain values as JSON, between an untrusted program and the checker. Standard library only.

Decoded values have built-in types only: an object whose equality always holds arrives as a handle,
and an integer of a subclass as a plain integer.
"""

import builtins
import sys
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from numbers import Complex, Integral, Rational, Real
from typing import Any

_SAFE = 2**53
_SEQUENCES: tuple[tuple[str, type], ...] = (
    ("l", list),
    ("t", tuple),
    ("s", set),
    ("z", frozenset),
    ("q", deque),
)
_BY_TAG = dict(_SEQUENCES)


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """JSON of a value; `handle` numbers objects of other types."""
    if value is None or isinstance(value, bool):
        return value
    # no number to Python, and known only where the program has imported it
    if isinstance(value, getattr(sys.modules.get("numpy"), "bool_", ())):
        return bool(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        number = int(value)
        return number if -_SAFE < number < _SAFE else ["i", hex(number)]
    if isinstance(value, Rational):
        return ["F", [encode(value.numerator, handle), encode(value.denominator, handle)]]
    if isinstance(value, Real):
        return ["f", float(value).hex()]
    if isinstance(value, Complex):
        number = complex(value)
        return ["c", number.real.hex(), number.imag.hex()]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "B", value.hex()]
    for tag, kind in _SEQUENCES:
        if isinstance(value, kind):
            return [tag, [encode(item, handle) for item in value]]
    if isinstance(value, dict):
        return ["d", [[encode(k, handle), encode(v, handle)] for k, v in value.items()]]
    if isinstance(value, range):
        return ["r", [encode(n, handle) for n in (value.start, value.stop, value.step)]]
    if isinstance(value, Decimal):
        return ["D", str(value)]
    if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
        return ["T", value.__name__]
    return ["o", handle(value)]


def decode(coded: Any, of_handle: Callable[[int], Any]) -> Any:
    """The decoded value.

    Raises ValueError, TypeError, IndexError or AttributeError for input that `encode` cannot write.
    """
    if coded is None or isinstance(coded, bool | str | int):
        return coded
    if not isinstance(coded, list):
        raise ValueError("no value")
    tag, body = coded[0], coded[1]
    if tag == "i":
        return int(body, 16)
    if tag == "f":
        return float.fromhex(body)
    if tag == "c":
        return complex(float.fromhex(body), float.fromhex(coded[2]))
    if tag in ("b", "B"):
        return bytes.fromhex(body) if tag == "b" else bytearray.fromhex(body)
    if tag in _BY_TAG:
        return _BY_TAG[tag](decode(item, of_handle) for item in body)
    if tag == "d":
        return {decode(k, of_handle): decode(v, of_handle) for k, v in body}
    if tag == "r":
        return range(*(decode(n, of_handle) for n in body))
    if tag == "D":
        return Decimal(body)
    if tag == "F":
        return Fraction(*(decode(n, of_handle) for n in body))
    if tag == "T" and isinstance(kind := getattr(builtins, body), type):
        return kind
    if tag == "o" and isinstance(body, int):
        return of_handle(body)
    raise ValueError("no value")
