"""The independent values of a cell, of which its metrics are means, and over which intervals and
comparisons are taken.

    repeats    of times, and of what depends on one: a repeat is one run of all requests of the
               cell, and its value that of its generations together (`pooled`). Generations are not
               independent: they have the prompts in order, in each repeat.
    prompts    of all other metrics: the value of a prompt is that of its samples in all repeats and
               turns together. Samples of one prompt are correlated, and repeats of greedy decoding
               are copies. A generation of several prompts has one value (such as its tau) for all
               of them: where a cell has such a generation, only means over requests
               (`Metric.by_request`) have values of its prompts, and the cell's value of other
               metrics is the mean over its repeats.
    one value  of the peak memory, which is that of the whole cell.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from bass.analysis.metrics import METRICS, means, measure, pooled, weighted_mean
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
    names = tuple(names)
    measured = [measure(generation, names) for generation in generations]
    repeats = []
    for seed in dict.fromkeys(call.seed for call in calls):
        own = [i for i, call in enumerate(calls) if call.seed == seed]
        repeats.append(pooled([generations[i] for i in own], [measured[i] for i in own]))
    single = all(len(set(call.prompt_numbers)) == 1 for call in calls)
    prompts: dict[int, dict[str, float]] = {
        number: {} for number in sorted({one for call in calls for one in call.prompt_numbers})
    }
    for name in names:
        metric = METRICS[name]
        if metric.over != "prompts" or not (single or metric.by_request):
            continue
        parts: dict[int, list[tuple[float, float]]] = {}
        for call, generation, values in zip(calls, generations, measured, strict=True):
            if metric.by_request:
                for request, value in metric.by_request(generation).items():
                    number = call.prompt_numbers[request // call.samples]
                    parts.setdefault(number, []).append((value, 1.0))
            elif name in values:
                of_call = values[name], metric.weight_of(generation)
                parts.setdefault(call.prompt_numbers[0], []).append(of_call)
        for number, found in parts.items():
            prompts[number][name] = weighted_mean(*zip(*found, strict=True))
    return Values(repeats, [*prompts.values()])


def metrics(
    repeats: Sequence[Mapping[str, float]], prompts: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The values of a cell: means over prompts of the metrics that prompts have, else over
    repeats.
    """
    return means(repeats) | means(prompts)
