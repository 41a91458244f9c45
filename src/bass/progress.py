"""Progress bars on standard error."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(*columns: Any, shown: bool | None = None) -> "Progress":
    """A bar of rich, with these columns instead of `done/total`.

    shown: None: on a terminal alone. Use it in `with`, and `add_task(text, total=...)`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *(columns or (MofNCompleteColumn(),)),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not (sys.stderr.isatty() if shown is None else shown),
    )
