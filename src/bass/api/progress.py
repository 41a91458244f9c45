"""Progress bars of a generation, and of captures."""

from collections.abc import Iterator

from bass.api.generation import Generation
from bass.api.results import Result
from bass.progress import advancing, progress_bar


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
    with advancing("generating tokens", sum(limits.values()), shown=True) as advance:
        for event in generation:
            row = event.prompt_index, event.sample_index
            limits[row] -= (count := len(event.token_ids))
            advance(count if event.finish_reason is None else count + limits.pop(row))
    return generation.result()


def counted(work: str, left: Iterator[int], progress: bool) -> None:
    """Do the work, such as "capturing CUDA graphs", of which `left` yields what is left; `progress`
    shows a bar on standard error.
    """
    with progress_bar(shown=progress) as bar:
        task = bar.add_task(work, total=None)
        for done, more in enumerate(left, 1):
            bar.update(task, completed=done, total=done + more)
