"""The peaks of the devices of a run, so that all its cells have shares of the same ones.

FOLDER/peaks.jsonl    one `PeakLine` for each device and dtype; the first one counts
"""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from bass.engine.cost import Peaks
from bass.files import append, write_atomically
from bass.runs.lines import read_lines
from bass.runs.strict import Json

PEAKS = "peaks.jsonl"


@final
@dataclass(frozen=True)
class PeakLine(Json):
    """Measured peaks: bytes and FLOPs per second."""

    device: str
    dtype: str
    bandwidth: float
    flops: float


def peaks_of_run(folder: Path, device: str, dtype: str, measured: Peaks) -> Peaks:
    """The peaks that the run has of the device; the measured ones, written down, if it has none.

    Another process, which continues the run or has other cells of it, measures others.
    """
    path = folder / PEAKS
    while True:
        lines = read_lines(path, PeakLine.from_json)
        for line in lines.values:
            if (line.device, line.dtype) == (device, dtype):
                return Peaks(line.bandwidth, line.flops)
        if lines.dropped:  # an incomplete line
            write_atomically(path, "".join(f"{line.to_json()}\n" for line in lines.values))
        line = PeakLine(device, dtype, measured.bandwidth, measured.flops)
        append(path, f"{line.to_json()}\n")
