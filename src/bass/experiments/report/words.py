"""Counts in words."""


def counted(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
