"""The time of the parts of a step, once per cell: the facts `parts_ms` and `parts_k`."""

import statistics
from typing import Any

from bass.api.llm import LLM
from bass.engine.parts import parts_of, without_graphs
from bass.engine.requests import StepRecord
from bass.errors import is_out_of_memory
from bass.runs.settings import Call


def parts_in_ms(
    llm: LLM, call: Call, options: dict[str, Any], trace: list[StepRecord]
) -> tuple[int, dict[str, float]] | None:
    """The draft length that half of the steps of a repeat do not exceed, and what the parts of a
    step of that length take, in ms.

    trace: the steps of the repeat, which `call` and `options` made. It is begun once more and
    stopped half-way, where `parts_of` times the parts; to the host's are added its seconds before a
    step, the median of the trace. None where a repeat has too few steps to be stopped half-way, or
    there is no room.
    """
    if len(trace) < 2:
        return None
    k = statistics.median_low([step.k for step in trace])
    generation = llm.start(call.prompts, call.options(options), call.first_sample)
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
