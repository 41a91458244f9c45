"""The format of figures: seconds in milliseconds, shares in percent, three digits."""

NOTHING = "–"  # where a metric does not apply
_SHOWN = {"share": "%", "tokens per second": "tokens/s", "requests per second": "requests/s"}


def number(value: float | None, unit: str = "") -> str:
    """Three digits, in the unit of a table; a dash without a value."""
    if value is None:
        return NOTHING
    value *= scale(unit)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if value else "0"


def scale(unit: str) -> float:
    """The factor from a figure's unit to the shown unit."""
    return 1e3 if unit.startswith("seconds") else 100.0 if unit == "share" else 1.0


def shown(unit: str) -> str:
    """The unit of `number`."""
    return unit.replace("seconds", "ms") if unit.startswith("seconds") else _SHOWN.get(unit, unit)
