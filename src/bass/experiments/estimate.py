"""How long a plan will take, from a few tokens of some of its cells."""

import time
from collections.abc import Sequence

from bass.experiments.cells import Pairs, Task
from bass.experiments.turns import by_models

TOKENS = 8  # of a timed call


def estimate(tasks: Sequence[Task]) -> float:
    """Seconds that the cells will take one after the other, loading included, about: one call of each batch size is timed.

    A cell's pace is taken to be that of the first one with its models and its batch. Raises what the cells would raise.
    """
    pairs, paces, total = Pairs(), {}, 0.0
    for task in by_models(tasks):
        settings, order = task.settings, task.order
        key = (str(order.target), str(order.device), order.dtype, repr(order.quantizations), settings.batch, order.draft is None)
        if key not in paces:
            began = time.perf_counter()
            llm, call = order.serve(pairs.models(order)), settings.calls[0]
            total += time.perf_counter() - began
            options = settings.stream_with | {"max_new_tokens": TOKENS, "time_budget": None, "ignore_eos": True, "stop": ()}
            prompts, samples = call.prompts[: settings.batch], min(call.samples, settings.batch)
            for _ in range(2):  # the first is warm-up
                began = time.perf_counter()
                llm.generate(prompts, num_return_sequences=samples, **options)
            paces[key] = (time.perf_counter() - began) / (TOKENS * -(-len(prompts) * samples // settings.batch))
        total += paces[key] * weight(task)
    return total


def weight(task: Task) -> int:
    """What a cell has to do, in tokens of a full batch: for an estimate, and for the bar of what remains."""
    settings = task.settings
    return settings.max_new_tokens * sum(-(-call.requests // settings.batch) for call in settings.calls)
