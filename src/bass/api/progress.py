"""Progress bars of a generation, and of captures."""

from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from bass.api.generation import Generation
from bass.api.results import Result


def finished(generation: Generation, progress: bool) -> Result:
    """Run the generation to its end and return the result; `progress` shows a bar on standard
    error.

    The total is the maximum number of tokens; a sample that ends early advances the bar by its
    remaining share.
    """
    if not progress:
        return generation.result()
    limits = {
        (request.prompt_index, request.sample_index): request.limit - len(request.prompt)
        for request in generation.run.requests
    }
    columns = (
        TextColumn("generating"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=sum(limits.values()))
        for event in generation:
            row = event.prompt_index, event.sample_index
            count = len(event.token_ids)
            limits[row] -= count
            if event.finish_reason is not None:
                count += limits.pop(row)
            bar.advance(task, count)
    return generation.result()


def counted(work: str, left: Iterator[int], progress: bool) -> None:
    """Do the work, such as "capturing CUDA graphs", of which `left` yields what is left; `progress`
    shows a bar on standard error.
    """
    columns = (
        TextColumn(work),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress)
    with bar:
        task = bar.add_task("", total=None)
        for done, more in enumerate(left, 1):
            bar.update(task, completed=done, total=done + more)


def reported(line: str) -> None:
    """Print a line on standard error, whole where it is no terminal."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(line, markup=False)
