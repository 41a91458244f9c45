"""Estimates the time of a plan from a few tokens of some of its cells."""

import time
from collections.abc import Sequence
from typing import Any

from bass.api.llm import LLM, serve
from bass.api.loading import ModelCache
from bass.experiments.cells import Task
from bass.experiments.load_plans import LoadPlans
from bass.experiments.prompting import first_prompts
from bass.experiments.turns import by_models
from bass.runs.settings import Settings

TOKENS = 4  # of a timed call
LONGEST = 3.0  # seconds for loads and timed calls


def estimate(tasks: Sequence[Task]) -> float:
    """Estimated seconds for all cells in sequence, with loading: times one call per batch size.

    A cell is assumed to be as fast as the first cell with the same models and batch; after
    `LONGEST` seconds, as one with the same models and the nearest batch that was timed. Raises the
    errors that the cells would raise.
    """
    pairs, load_plans, total, spent = ModelCache(), LoadPlans(), 0.0, 0.0
    paces: dict[tuple[Any, ...], tuple[float, float]] = {}
    for task in by_models(tasks, load_plans):
        settings = task.settings
        key = *load_plans.of(settings).models, settings.batch
        if key not in paces:
            timed = [other for other in paces if other[:-1] == key[:-1]]
            began = time.perf_counter()
            if timed and spent > LONGEST:
                nearest = min(timed, key=lambda other: abs(other[-1] - settings.batch))
                paces[key] = paces[nearest]
            else:
                llm = serve(settings.load_plan(), pairs)
                total += time.perf_counter() - began
                paces[key] = _pace(llm, settings)
            spent += time.perf_counter() - began
        prefill, pace = paces[key]
        total += settings.batches * (prefill + pace * settings.max_new_tokens)
    return total


def _pace(llm: LLM, settings: Settings) -> tuple[float, float]:
    """Seconds of a prefill, and of each later token of a full batch, in a second call.

    It computes no statistics, since they would measure the device's peaks.
    """
    call = settings.calls[0]
    entries, samples = call.prompts[: settings.batch], min(call.samples, settings.batch)
    prompts = first_prompts(llm.models.tokenizer, entries, llm.max_model_len)
    options = settings.stream_with
    options |= {
        "max_new_tokens": TOKENS,
        "min_new_tokens": 0,
        "time_budget": None,
        "ignore_eos": True,
        "stop": (),
        "num_return_sequences": samples,
    }
    for _ in llm.stream(prompts, **options):
        pass  # compiles and records what the timed call only runs
    generation = llm.stream(prompts, **options)
    for _ in generation:
        pass
    trace = generation.run.trace
    prefill = min(trace.prefilled.values())
    # the first step includes one-time costs, and counts only if it is the only one
    first, *rest = trace.steps
    began, timed = (first.at, rest) if rest else (prefill, [first])
    tokens = sum(float(step.emitted.sum()) / int(step.active.sum()) for step in timed)
    return prefill, (timed[-1].at - began) / tokens


def weight(task: Task) -> int:
    """The work of a cell in tokens of a full batch, for the progress bar."""
    return task.settings.max_new_tokens * task.settings.batches
