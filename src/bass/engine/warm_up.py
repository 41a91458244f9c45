"""What a warm-up runs, so that no later call compiles a kernel."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from bass.drafters.ensemble import is_ours
from bass.engine.assembly import Storage
from bass.engine.engines import EngineCache, Engines
from bass.engine.graphs import GraphedStep, trial
from bass.engine.prefill import (
    LEAST_CAUGHT_UP,
    PREFILL_WINDOW,
    captured_span,
    captured_windows,
    empty_window,
    equal_windows,
    feed,
    most_captured,
    prefill_window,
)
from bass.engine.shapes import bucket
from bass.engine.step import Step
from bass.ops.batch_state import last
from bass.ops.dispatch import compiled_ahead, compiles_ahead
from bass.records import Window

# positions: from one power of two times it to the next, attention has the same number of splits
SPAN = 256


def first_prefills(cache: EngineCache, steps: Iterable[Step]) -> None:
    """Capture the prefill of kept engines of these steps, and feed windows of other kinds.

    Without graphs it does nothing.
    """
    engines = cache.engines
    if engines is not None and engines.graphs:
        with cache.explained(engines.storage.budget):
            for step in steps:
                step.prepare_prefill()
            first_windows(engines)


def first_windows(engines: Engines) -> None:
    """Feed windows of the kinds that requests need, once, to each number of rows with an engine.

    No row has a token in them (position -1), so nothing is stored: they compile kernels.
    """
    if engines.windows_fed:
        return
    engine = engines.engine(engines.sizes[-1])
    sequences, step = engine.sequences, engine.step
    with torch.inference_mode():
        for rows in engines.sizes:
            for window in prompt_windows(engines, rows):
                feed(step.target, step.drafter, window)
            for window in caught_up_windows(engines, rows):
                step.drafter.fill(window)
        for columns in {columns for columns, _ in caught_up_shapes(sequences.capacity)}:
            last(sequences, columns)
        step.log.take()
    engines.windows_fed = True


def prompt_windows(engines: Engines, rows: int) -> Iterator[Window]:
    """Windows of `rows` prompts, in the shapes that no graph feeds."""
    sequences = engines.storage.sequences
    device = sequences.tokens.device
    batch = engines.sizes[-1] if is_ours(engines.storage.parts.drafter) else None
    for columns, span in prompt_shapes(rows, batch, sequences.capacity, device):
        yield empty_window(rows, columns, span, device)


def captured_prompts(engines: Engines, rows: int) -> Iterator[Window]:
    """Windows of `rows` prompts, in the shapes that graphs feed."""
    sequences = engines.storage.sequences
    span = captured_span(sequences.capacity)
    for columns in captured_windows(rows, sequences.capacity):
        yield empty_window(rows, columns, span, sequences.tokens.device)


def caught_up_windows(engines: Engines, rows: int) -> Iterator[Window]:
    """Windows of what a drafter is fed after steps without drafts."""
    sequences = engines.storage.sequences
    for columns, span in caught_up_shapes(sequences.capacity):
        yield empty_window(rows, columns, span, sequences.tokens.device)


def compiled(engines: Engines) -> Iterator[int]:
    """Compile in threads what captures and windows would compile one kernel after the other.

    Yields the number of shapes that are left; few where all kernels are on disk.
    """
    if not (compiles_ahead() and keeps_nothing(engines.storage)):
        return
    with torch.inference_mode():  # a pass of each model, which makes its tables of positions
        step = engines.engine(engines.sizes[0]).step
        feed(step.target, step.drafter, next(captured_prompts(engines, engines.sizes[0])))
    rehearsals = [*rehearsals_of(engines)]
    for some in (rehearsals[:1], rehearsals[1:]):
        with compiled_ahead() as compiler, torch.inference_mode():
            for i, rehearse in enumerate(some, 1 + len(rehearsals) - len(some)):
                rehearse()
                yield len(rehearsals) - i
        if not compiler.compiled:
            return


def rehearsals_of(engines: Engines) -> Iterator[Callable[[], None]]:
    """What launches the kernels of steps, the largest first, of prefills and of catch-ups."""
    for engine, k, span in engines.shapes():
        if isinstance(engine.step, GraphedStep):
            step, rows = engine.step, engine.sequences
            yield partial(step.rehearse, partial(trial, step.inner, rows, k, span))
    for size in engines.sizes:
        step = engines.engine(size).step
        if isinstance(step, GraphedStep):
            for window in (*captured_prompts(engines, size), *prompt_windows(engines, size)):
                yield partial(step.rehearse, partial(feed, step.target, step.drafter, window))
            for window in caught_up_windows(engines, size):
                yield partial(step.rehearse, partial(step.drafter.fill, window))


def keeps_nothing(storage: Storage) -> bool:
    """Whether no part of a step may keep a tensor that it makes when it first runs.

    Within the capture of a graph that is dropped, its values would be lost. Only our own parts are
    known not to, after a pass of the models.
    """
    parts, decoders = storage.parts, (storage.models.target, storage.models.draft)
    used: list[object] = [parts.verifier, parts.stop_rule, parts.attention]
    used += [module for one in decoders if one is not None for module in one.modules()]
    return is_ours(parts.drafter) and all(
        type(part).__module__.startswith(("bass.", "torch.")) for part in used if part is not None
    )


def prompt_shapes(
    rows: int, batch: int | None, capacity: int, device: torch.device
) -> Iterator[tuple[int, int]]:
    """Columns and spans of the windows of `rows` prompts that no graph feeds, in an engine of up to
    `batch` rows (None: graphs feed none): of short ones, and parts of long ones.
    """
    most = min(prefill_window(rows, device), capacity)
    least = 1
    if batch is not None:
        least = min(most_captured(batch, capacity) + 1, equal_windows(most + 1, most), most)
    for columns in doubled(1 << (least.bit_length() - 1), most):
        yield columns, bucket(columns, capacity)
    for span in spans(capacity):
        if span > most:
            yield most, span


def caught_up_shapes(capacity: int) -> Iterator[tuple[int, int]]:
    """Columns and spans of what a drafter is fed after steps without drafts."""
    for span in spans(capacity):
        for columns in doubled(LEAST_CAUGHT_UP, min(PREFILL_WINDOW, capacity)):
            yield columns, span


def spans(capacity: int) -> list[int]:
    """The spans whose kernels may differ."""
    return [span for span in doubled(SPAN, capacity) if span > SPAN or span == capacity]


def doubled(least: int, most: int) -> list[int]:
    """`least`, twice it and so on up to `most`, and `most`."""
    found = [least << i for i in range((most // least).bit_length()) if least << i < most]
    return [*found, most]
