"""A bar for a generation of which nothing else is seen before its end."""

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
    """The generation's result; with `progress`, a bar of its tokens on standard error.

    The bar's end is what the samples may have at most: one that ends early takes its share along.
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
