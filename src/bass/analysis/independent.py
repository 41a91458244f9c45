"""The independent values of a cell, of which its metrics are means, and over which intervals and
comparisons are taken.

    repeats    of times, and of what depends on one: a repeat is one run of all requests of the
               cell, and its value the mean over its generations. Generations are not independent:
               they have the prompts in order, in each repeat.
    prompts    of all other metrics: the value of a prompt is the mean over its samples and repeats.
               Samples of one prompt are correlated, and repeats of greedy decoding are copies. A
               generation of several prompts has one value (such as its tau) for all of them, so
               that only means over requests (`Metric.by_request`) have values of its prompts.
    one value  of the peak memory, which is that of the whole cell.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from bass.analysis.metrics import METRICS, means, measure
from bass.analysis.repeats import Repeat
from bass.runs.settings import Call


@final
@dataclass(frozen=True)
class Values:
    """Metrics by name: of each repeat, and those over prompts of each prompt, in order."""

    repeats: list[dict[str, float]]
    prompts: list[dict[str, float]]

    @property
    def metrics(self) -> dict[str, float]:
        """The values of the cell."""
        return metrics(self.repeats, self.prompts)


def independent(
    calls: Sequence[Call], generations: Sequence[Repeat], names: Iterable[str] = tuple(METRICS)
) -> Values:
    """The values of metrics of these names; `generations`: of each call."""
    measured = [measure(generation, names) for generation in generations]
    seeds = dict.fromkeys(call.seed for call in calls)
    of_prompts = [
        _by_prompt(call, generation, values)
        for call, generation, values in zip(calls, generations, measured, strict=True)
    ]
    prompts = sorted({number for found in of_prompts for number in found})
    return Values(
        [
            means([one for call, one in zip(calls, measured, strict=True) if call.seed == seed])
            for seed in seeds
        ],
        [means([found[number] for found in of_prompts if number in found]) for number in prompts],
    )


def _by_prompt(
    call: Call, generation: Repeat, measured: Mapping[str, float]
) -> dict[int, dict[str, float]]:
    """The metrics over prompts of a generation, by the number of the prompt."""
    numbers = dict.fromkeys(call.prompt_numbers)
    over = {name: METRICS[name] for name in measured if METRICS[name].over == "prompts"}
    if len(numbers) == 1:
        return {number: {name: measured[name] for name in over} for number in numbers}
    found: dict[int, dict[str, float]] = {number: {} for number in numbers}
    for name, metric in over.items():
        values: dict[int, list[float]] = {}
        for request, value in (metric.by_request(generation) if metric.by_request else {}).items():
            values.setdefault(call.prompt_numbers[request // call.samples], []).append(value)
        for number, own in values.items():
            found[number][name] = float(np.mean(own))
    return found


def metrics(
    repeats: Sequence[Mapping[str, float]], prompts: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The values of a cell: means over prompts of the metrics that prompts have, else over
    repeats.
    """
    return means(repeats) | means(prompts)
