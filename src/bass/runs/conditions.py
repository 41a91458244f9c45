"""The state of the machine during each repeat, to separate its noise from real effects: an optional
file of a cell's folder.

FOLDER/cells/ID/conditions.jsonl    one `ConditionLine` per repeat; a folder of an older run has
                                    none
"""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from bass.runs.lines import read_lines
from bass.runs.strict import Json

CONDITIONS = "conditions.jsonl"


@final
@dataclass(frozen=True)
class ConditionLine(Json):
    """The state of the machine directly before and during a repeat.

    None: not reported by the system, or no GPU.
    """

    repeat: int
    began: str  # ISO 8601
    load: float  # average number of runnable processes in the minute before
    others: float | None  # processors that other processes kept busy during the repeat, on average
    clock_mhz: float | None  # of the processors, before it
    product: float | None  # seconds of a fixed matrix product on the CPU, before it
    read: float | None  # seconds of a fixed read of memory on the CPU, before it
    device_clock_mhz: float | None
    device_product: float | None
    device_read: float | None
    peak_memory_bytes: int | None  # maximum allocated on the GPU during it


def read_conditions(folder: Path) -> list[ConditionLine]:
    """The lines of a cell, including those of incomplete repeats."""
    return read_lines(folder / CONDITIONS, ConditionLine.from_json).values
