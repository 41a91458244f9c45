"""A run folder in Python: `bass.open_run`."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.report.table import Table, table
from bass.report.table_formats import FORMATS, format_of, to_pandas
from bass.runs.run_folder import RunFolder


@final
@dataclass(frozen=True)
class Run:
    """The results of `bass ablate`, finished or not. `folder` reads single lines."""

    folder: RunFolder

    @functools.cached_property
    def table(self) -> Table:
        """A row for each finished cell, and category of prompts where there are some.

        Raises `RunFolderError` for a damaged folder, and one without a finished cell.
        """
        return table(self.folder)

    def to_text(self, format: str = "markdown") -> str:
        """The table as `markdown`, `latex` or `csv`."""
        return FORMATS[format_of(format, None)](self.table)

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`: times in seconds, shares from 0 to 1, NaN or None
        where a value does not apply, and the reasons in `attrs["notes"]`.

        Raises `OptionError` without pandas.
        """
        return to_pandas(self.table)


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open the folder of a run. Raises `RunFolderError` if it is none."""
    folder = RunFolder(Path(path))
    _ = folder.manifest
    return Run(folder)
