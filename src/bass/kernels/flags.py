"""Bits of a row's flag for invalid distributions; 0 for a valid row.

The low ones are of its draft, the others of the target's distributions: `TARGET` times a bit.
"""

BITS = tuple(1 << i for i in range(6))
NOT_FINITE, NEGATIVE, NOT_ONE, UNKNOWN_TOKEN, NEGATIVE_LENGTH, IMPOSSIBLE_TOKEN = BITS
TARGET = 1 << len(BITS)
TOLERANCE = 1e-3  # of the sum of a distribution in float32, around 1
