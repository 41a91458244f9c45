"""What a warm-up runs, so that no later call compiles a kernel."""

from collections.abc import Iterable, Iterator

import torch

from bass.api.engines import EngineCache, Engines
from bass.api.generation import Generation
from bass.engine.prefill import (
    LEAST_CAUGHT_UP,
    PREFILL_WINDOW,
    equal_windows,
    feed,
    most_captured,
    prefill_window,
)
from bass.engine.shapes import bucket
from bass.engine.step import Step
from bass.ops.batch_state import last
from bass.records import Window

# positions: from one power of two times it to the next, attention has the same number of splits
SPAN = 256


def first_step(generation: Generation) -> None:
    """Take the first step of a generation, and end it."""
    try:
        next(iter(generation))
    finally:
        generation.close()


def first_prefills(cache: EngineCache, steps: Iterable[Step]) -> None:
    """Capture the prefill of kept engines of these steps, and feed windows of other kinds."""
    engines = cache.engines
    if engines is not None:
        with cache.explained(engines.storage.budget):
            for step in steps:
                step.prepare_prefill()
            first_windows(engines)


def first_windows(engines: Engines) -> None:
    """Feed windows of the kinds that requests need, to each number of rows that has an engine.

    No row has a token in them (position -1), so nothing is stored: they compile kernels.
    """
    engine = engines.engine(engines.sizes[-1])
    sequences, step = engine.sequences, engine.step
    device = sequences.tokens.device
    with torch.inference_mode():
        for rows in engines.sizes:
            for columns, span in prompt_shapes(rows, engines.sizes[-1], sequences.capacity, device):
                feed(step.target, step.drafter, empty_window(rows, columns, span, device))
            for columns, span in caught_up_shapes(sequences.capacity):
                step.drafter.fill(empty_window(rows, columns, span, device))
        for columns in {columns for columns, _ in caught_up_shapes(sequences.capacity)}:
            last(sequences, columns)
        step.log.take()


def empty_window(rows: int, columns: int, span: int, device: torch.device) -> Window:
    """A window without a token."""
    positions = torch.full((rows, columns), -1, device=device)
    return Window(torch.zeros_like(positions), positions, span)


def prompt_shapes(
    rows: int, batch: int, capacity: int, device: torch.device
) -> Iterator[tuple[int, int]]:
    """Columns and spans of the windows of `rows` prompts that no graph feeds, in an engine of up to
    `batch` rows: of short ones, and parts of long ones.
    """
    most = min(prefill_window(rows, device), capacity)
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
