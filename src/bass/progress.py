"""Progress bars on standard error. rich is imported when one is made."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(shown: bool | None = None) -> "Progress":
    """A bar of rich, for `with` and `add_task(text, total=...)`. shown: None: on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not (sys.stderr.isatty() if shown is None else shown),
    )


@contextmanager
def watched() -> Iterator[Callable[[str, int, int], object]]:
    """What shows a text, and how much of a total is done."""
    with progress_bar() as bar:
        task = bar.add_task("")
        yield lambda text, done, total: bar.update(
            task, description=text, completed=done, total=total
        )


@contextmanager
def advancing(text: str, total: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """What advances a bar by a count; without a bar if it is not shown."""
    if not shown:
        yield lambda count: None
        return
    with progress_bar(shown) as bar:
        yield partial(bar.advance, bar.add_task(text, total=total))


def counted(work: str, left: Iterator[int], progress: bool) -> None:
    """Do the work; `left` yields what is left. `progress` shows a bar on standard error."""
    with progress_bar(shown=progress) as bar:
        task = bar.add_task(work, total=None)
        for done, more in enumerate(left, 1):
            bar.update(task, completed=done, total=done + more)
