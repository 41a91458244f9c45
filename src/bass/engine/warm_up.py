"""What a warm-up runs, so that no later call compiles a kernel."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product

import torch

from bass.drafters.several import is_ours
from bass.engine.assembly import Storage
from bass.engine.engines import EngineCache
from bass.engine.graphs import GraphedStep, trial
from bass.engine.prefill import (
    CHUNK_TOKENS,
    LEAST_CAUGHT_UP,
    PREFILL_WINDOW,
    empty_window,
    feeds_target,
    prefill_window,
    segment_kinds,
)
from bass.engine.shapes import bucket, doubled
from bass.engine.step import Step
from bass.ops import dispatch

# positions: up to it, and from one power of two times it to the next, attention has the same number
# of splits
SPLIT_SPAN = 512


def first_prefills(cache: EngineCache, steps: Iterable[Step]) -> None:
    """Capture the windows of these steps of kept engines, and feed those of other kinds, once.

    Without graphs it does nothing.
    """
    storage = cache.storage
    if storage is None or not storage.graphs:
        return
    with cache.explained(storage.budget), storage.preparing():
        storage.sequences.active.fill_(False)  # rows of a closed run
        for step in steps:
            step.prepare_windows()
        if storage.windows_fed:
            return
        engine = storage.engine(storage.sizes[-1])
        for rows in storage.sizes:
            for fill in first_windows(storage, engine.step, rows):
                fill()
        engine.step.log.take()
    storage.windows_fed = True


def first_windows(storage: Storage, step: Step, rows: int) -> Iterator[Callable[[], object]]:
    """What feeds windows of the kinds that requests need to the first `rows` rows, where no graph
    does: of prompts, and of what a drafter lacks.

    All rows are idle and have no token in them (position -1), so nothing is stored: they compile
    kernels.
    """
    capacity, device = storage.capacity, storage.models.device
    if storage.prefills is not None:
        return
    feed = feeds_target(step.target, step.drafter)
    for columns, span in prompt_shapes(rows, capacity, device):
        window = empty_window(rows, columns, span, device)
        yield partial(feed, window, window.tokens)
    for columns, span in caught_up_shapes(capacity):
        yield partial(step.drafter.fill, empty_window(rows, columns, span, device))


def first_segments(storage: Storage) -> Iterator[Callable[[], object]]:
    """What feeds windows without a token of the kinds that are captured, as `first_windows`."""
    if storage.prefills is not None:
        for prompts in segment_kinds(storage.capacity, storage.models.device):
            for graphs in storage.prefills.all:
                yield partial(graphs.run, *prompts)


def compiled(storage: Storage) -> Iterator[int]:
    """Compile in threads what captures and windows would compile one kernel after the other.

    Yields the number of shapes that are left; few where all kernels are on disk.
    """
    launch = dispatch.launches()
    if not (launch.COMPILES_AHEAD and keeps_nothing(storage)):
        return
    with torch.inference_mode():  # a pass of each model, which makes its tables of positions
        rows = storage.sizes[0]
        step = storage.engine(rows).step
        windows = [*first_segments(storage), *first_windows(storage, step, rows)]
        # the target's, and those of the drafters
        for feed in (windows[0], *windows[-len(step.drafter.choices) :]):
            feed()
    rehearsals = [*rehearsals_of(storage)]
    for some in (rehearsals[:1], rehearsals[1:]):
        with launch.compiled_ahead() as compiler, torch.inference_mode():
            for i, rehearse in enumerate(some, 1 + len(rehearsals) - len(some)):
                rehearse()
                yield len(rehearsals) - i
        if not compiler.compiled:
            return


def rehearsals_of(storage: Storage) -> Iterator[Callable[[], None]]:
    """What launches the kernels of steps, the largest first, and of prefills and catch-ups."""
    for engine, shape in storage.shapes():
        if isinstance(step := engine.step, GraphedStep):
            yield partial(step.rehearse, partial(trial, step.inner, engine.sequences, shape))
    for size in storage.sizes:
        if isinstance(step := storage.engine(size).step, GraphedStep):
            segments = first_segments(storage) if size == storage.sizes[0] else ()
            for fill in (*segments, *first_windows(storage, step, size)):
                yield partial(step.rehearse, fill)


def keeps_nothing(storage: Storage) -> bool:
    """Whether no part of a step may keep a tensor that it makes when it first runs.

    Within the capture of a graph that is dropped, its values would be lost. Only our own parts are
    known not to, after a pass of the models.
    """
    parts = storage.parts
    used: list[object] = [parts.verifier, parts.stop_rule, parts.trim, parts.attention]
    used += [module for one in storage.models.modules for module in one.modules()]
    return is_ours(parts.drafter) and all(
        type(part).__module__.startswith(("bass.", "torch.")) for part in used if part is not None
    )


def prompt_shapes(rows: int, capacity: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Columns and spans of the windows of `rows` prompts, without graphs: of short ones, of parts
    of long ones, and of those that are fed while other rows run.
    """
    most = min(prefill_window(rows, device), capacity)
    for columns in doubled(1, most):
        yield columns, bucket(columns, capacity)
    chunk = min(CHUNK_TOKENS["cuda"], most)
    for span in doubled(SPLIT_SPAN, capacity):
        yield chunk, span
        if span > most > chunk:
            yield most, span


def caught_up_shapes(capacity: int) -> list[tuple[int, int]]:
    """Columns and spans of the windows of a drafter that catches up, without graphs."""
    columns = doubled(LEAST_CAUGHT_UP, min(PREFILL_WINDOW, capacity))
    return [*product(columns, doubled(SPLIT_SPAN, capacity))]
