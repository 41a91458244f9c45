"""Numbers and settings in words."""

# Metrics of a table, in its order: those that a reader asks for first.
COLUMNS = ("all", "first", "last", "tokens_per_second", "speedup_all", "mean_acceptance_length", "draft_acceptance_rate", "mbu", "mfu")


def number(value: float | None, unit: str = "") -> str:
    """Three digits, in the unit of a table: seconds as ms, shares as %."""
    if value is None:
        return "–"
    value *= scale(unit)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if value else "0"


def scale(unit: str) -> float:
    """By what a figure is multiplied to be read."""
    return 1e3 if unit.startswith("seconds") else 100.0 if unit == "share" else 1.0


def shown(unit: str) -> str:
    """The unit of what `number` gives."""
    return unit.replace("seconds", "ms") if unit.startswith("seconds") else {"share": "%"}.get(unit, unit)


def counted(count: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
