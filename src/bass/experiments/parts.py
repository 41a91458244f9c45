"""The time of the parts of a step, once per cell: the facts `parts_ms` and `parts_k`."""

import statistics
from collections.abc import Callable

from bass.api.generation import Generation
from bass.engine.parts import parts_of, without_graphs
from bass.engine.requests import StepRecord
from bass.errors import is_out_of_memory


def parts_in_ms(
    start: Callable[[], Generation], trace: list[StepRecord]
) -> tuple[int, dict[str, float]] | None:
    """The median draft length of a repeat, and the time of the parts of such a step, in ms.

    trace: the steps of a generation that `start` starts again. It is stopped
    half-way, where `parts_of` times the parts; the median host time before a step, from the trace,
    is added to the part of the host. None if a repeat has too few steps, or memory is full.
    """
    if len(trace) < 2:
        return None
    k = statistics.median_low([step.k for step in trace])
    generation = start()
    run = generation.run
    try:
        for _ in generation:
            if len(run.trace.steps) >= len(trace) // 2:
                break
        if without_graphs(run.step) is None or not bool(run.sequences.active.any()):
            return None
        parts = parts_of(run.step, run.sequences, k)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        generation.close()
    parts["host"] += statistics.median(step.host_seconds for step in trace)
    return k, {name: 1e3 * seconds for name, seconds in parts.items()}
