"""What is wrong with a row's draft: bits of the row's flag, 0 for a valid draft."""

BITS = tuple(1 << i for i in range(5))
NOT_FINITE, NEGATIVE, NOT_ONE, UNKNOWN_TOKEN, NEGATIVE_LENGTH = BITS
TOLERANCE = 1e-3  # of the sum of a distribution in float32, around 1
