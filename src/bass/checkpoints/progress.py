"""The progress bar of reading or writing a large checkpoint."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bass.printable import printable

SHOWN_FROM = 1_000_000_000  # bytes from which there is a progress bar


@contextmanager
def progress(task: str, total: int) -> Iterator[Callable[[int], None]]:
    """The callback for every tensor's bytes: a progress bar on standard error, for large
    checkpoints on a terminal.
    """
    if total < SHOWN_FROM or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    with bar:
        row = bar.add_task(printable(task), total=total)
        yield lambda count: bar.advance(row, count)
