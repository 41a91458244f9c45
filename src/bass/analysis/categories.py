"""The part of a generation that belongs to the requests of one category of prompts."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import numpy as np

from bass.analysis.repeats import Repeat
from bass.engine.requests import StepRecord
from bass.runs.records import RequestLine

# metrics of times and work that all rows of a step share: no part of them is a category's
SHARED = frozenset(
    {
        "seconds",
        "prefill_seconds",
        "tokens_per_second",
        "decode_tokens_per_second",
        "goodput",
        "host_share",
        "bound_seconds",
        "mbu",
        "mfu",
        "mfu_kept",
        "padding_waste",
        "cache_padding_waste",
        "peak_memory_bytes",
        "speedup_tokens_per_second",
        "speedup_limit",
        "draft_cost_ratio",
        "predicted_speedup",
    }
)


def category_of(line: RequestLine) -> str:
    """The category of a request's prompt; empty where the run records none."""
    return line.category


def categories(lines: Iterable[RequestLine]) -> list[str]:
    """The categories of these requests, sorted; empty if they have none."""
    return sorted({category_of(line) for line in lines} - {""})


def of_category(generations: Sequence[Repeat], category: str) -> tuple[dict[int, Repeat], bool]:
    """The part of each generation that has such requests, by its index; and whether all of these
    are whole, so that times of their steps are the category's own.
    """
    parts: dict[int, Repeat] = {}
    whole = True
    for index, one in enumerate(generations):
        own = {line.request for line in one.requests if category_of(line) == category}
        if len(own) == len(one.requests):
            parts[index] = one
        elif own:
            whole, parts[index] = False, of_requests(one, own)
    return parts, whole


def of_requests(generation: Repeat, own: Set[int]) -> Repeat:
    """The generation with the rows of all other requests idle; a step without any is left out."""
    steps = [_of_step(step, own) for step in generation.steps]
    return replace(
        generation,
        steps=[step for step in steps if step.active.any()],
        requests=[line for line in generation.requests if line.request in own],
        plain=None if generation.plain is None else of_requests(generation.plain, own),
    )


def _of_step(step: StepRecord, own: Set[int]) -> StepRecord:
    kept = np.isin(step.requests, [*own])
    return replace(
        step,
        requests=np.where(kept, step.requests, -1),
        drafted=step.drafted * kept,
        accepted=step.accepted * kept,
        emitted=step.emitted * kept,
    )
