"""The page of one evaluation or two: the best method within a budget, its lead, the curves."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bass.analysis.evaluated import Evaluated
from bass.analysis.intervals import Mean, mean_difference, mean_score, mean_scores
from bass.analysis.scores import CLOCKS, mean_pass_at_k
from bass.analysis.statistics import LEVEL
from bass.errors import counted
from bass.report.curves import curves
from bass.report.drawing import Plot
from bass.report.page import render
from bass.runs.words import listed

MOST_REPORTED = 3  # budgets in the summary; with more, it has only the middle one
SINCE = {"prefill": "from the end of the prefill", "start": "from the start of the request"}
MEANINGS = [
    (
        "finished",
        (
            "A sample that ended by itself: at an end of sequence, a stop string, or its number of "
            "tokens."
        ),
    ),
    (
        "First",
        (
            "The score of the most probable (by mean log-probability) of a problem's samples "
            "finished "
            "within the budget; 0 without one."
        ),
    ),
    ("All", "The best score of a problem's samples finished within the budget; 0 without one."),
    (
        "pass@k",
        (
            "The unbiased estimate of Chen et al. (2021), 1 - C(n-c, k) / C(n, k), whenever the "
            "samples finished."
        ),
    ),
    (
        "The two clocks",
        ("A budget starts at the end of the problem's first prefill, or at the request."),
    ),
    (
        "Intervals",
        f"{100 * LEVEL:.0f} %, over problems: bootstrap from 30 problems on, Student's t below, "
        "and the bound of Clopper and Pearson where "
        "all problems have the same score. They estimate the score on other problems of this "
        "kind; samples of one problem are correlated.",
    ),
]


def page(evaluated: Evaluated) -> tuple[str, list[Plot], list[str]]:
    """The HTML, its plots, and its sentences."""
    reported, drawn = sentences(evaluated), curves(evaluated)
    configs = [
        json.dumps(manifest["config"], indent=2, ensure_ascii=False)
        for manifest in evaluated.manifests
    ]
    letters, names = (
        ([""], ["What was run"])
        if len(configs) == 1
        else (["A: ", "B: "], ["What was run, A", "What was run, B"])
    )
    html = render(
        title=f"bass: {evaluated.task}, {evaluated.name}",
        facts=[
            _about(evaluated),
            *(
                f"{letter}{_machine(one)}"
                for letter, one in zip(letters, evaluated.manifests, strict=True)
            ),
        ],
        warnings=list(evaluated.notes),
        summary=reported,
        tables=[whole(evaluated), *(within_budgets(evaluated, clock) for clock in CLOCKS)],
        plots=drawn,
        plots_first=True,
        words=MEANINGS,
        sources=list(zip(names, configs, strict=True)),
    )
    return html, drawn, [*evaluated.notes, *reported]


def sentences(evaluated: Evaluated) -> list[str]:
    """The summary, the most important sentence first."""
    first, best = labels(evaluated)
    budgets = list(evaluated.budgets)
    if not budgets:
        return [f"No sample was finished, so that {first} and {best} are 0 for every budget."]
    chosen = budgets if len(budgets) <= MOST_REPORTED else [budgets[(len(budgets) - 1) // 2]]
    reported = []
    for budget in chosen:
        head = f"Within {budget:.3g} s {SINCE[CLOCKS[0]]}"
        if evaluated.pairs:
            reported += [f"{head}, {_change(evaluated, a, b, budget)}" for a, b in evaluated.pairs]
            continue
        if len(evaluated.methods) > 1:
            found = [_winner(evaluated, budget, which) for which in (0, 1)]
            reported += [
                f"{head}, {sentence}"
                for clear, sentence in sorted(found, key=lambda one: not one[0])
            ]
        reported += [_of_method(evaluated, method, budget) for method in evaluated.methods]
    reported.append(_without_limit(evaluated))
    middle = (
        f" {chosen[0]:.3g} s is the middle one of {len(budgets)} budgets; tables and curves have "
        "the others."
    )
    reported.append(
        f"In brackets: {100 * LEVEL:.0f} % intervals over "
        f"{counted(evaluated.count, 'problem')}.{middle if chosen != budgets else ''}"
    )
    return reported


def labels(evaluated: Evaluated) -> tuple[str, str]:
    """The names of First and All for this kind of score."""
    return (
        ("First (ROUGE-2)", "All (ROUGE-2)")
        if evaluated.kind == "rouge2"
        else ("Pass@First", "Pass@All")
    )


def whole(evaluated: Evaluated) -> dict[str, Any]:
    """The table of scores without a budget."""
    usual = () if evaluated.kind == "rouge2" else (1, 2, 4, 8, 16, 32, 64, 100, 128, 256)
    ks = [k for k in evaluated.ks or usual if k <= _fewest(evaluated)]
    heads = [
        {"text": text, "unit": "%"}
        for text in (*labels(evaluated), "mean of samples", "finished", *(f"pass@{k}" for k in ks))
    ]
    rows = []
    for method, groups in evaluated.methods.items():
        flat = [s for group in groups for s in group]
        shares = [
            np.mean([s.value for s in flat]),
            np.mean([s.sample.finished for s in flat]),
            *(mean_pass_at_k(groups, k) for k in ks),
        ]
        both = [mean_score(values) for values in evaluated.scores(method, math.inf, CLOCKS[0])]
        times = [s.sample.from_prefill for s in flat if s.sample.finished]
        cells = [
            method,
            *(percent(one) for one in both),
            *(f"{100 * share:.1f}" for share in shares),
            _time(times),
        ]
        rows.append({"best": False, "cells": cells})
    heads = [{"text": "method"}, *heads, {"text": "median time", "unit": "s"}]
    note = "Without a budget. Median time: of a finished sample, from the end of the prefill."
    return {
        "title": "Scores without a time limit",
        "note": note,
        "heads": heads,
        "rows": rows,
        "words": False,
        "folded": False,
    }


def within_budgets(evaluated: Evaluated, clock: str) -> dict[str, Any]:
    """The table of First and All by budget, with a column for each method."""
    heads = [{"text": "budget", "unit": "s"}]
    heads += [
        {"text": f"{method}, {name}", "unit": "%"}
        for method in evaluated.methods
        for name in ("First", "All")
    ]
    scores = [
        values
        for method in evaluated.methods
        for values in evaluated.scores_within(method, evaluated.budgets, clock)
    ]
    found, count = mean_scores(np.concatenate(scores)), len(evaluated.budgets)
    rows = [
        {"best": False, "cells": [f"{budget:.3g}", *map(percent, found[i::count])]}
        for i, budget in enumerate(evaluated.budgets)
    ]
    return {
        "title": f"Within a budget, {SINCE[clock]}",
        "note": "",
        "heads": heads,
        "rows": rows,
        "words": False,
        "folded": True,
    }


def percent(mean: Mean) -> str:
    """`43.3 (35.7 to 50.9)`."""
    return f"{100 * mean.value:.1f} ({100 * mean.low:.1f} to {100 * mean.high:.1f})"


def _winner(evaluated: Evaluated, budget: float, which: int) -> tuple[bool, str]:
    """Whether one method has the highest First (0) or All (1) within the budget, by the paper's
    clock; and a sentence about it.
    """
    scores = {
        method: evaluated.scores(method, budget, CLOCKS[0])[which] for method in evaluated.methods
    }
    best, *others = sorted(scores, key=lambda method: -float(scores[method].mean()))
    leads = {other: mean_difference(scores[other], scores[best], len(others)) for other in others}
    name = labels(evaluated)[which]
    level = [other for other, lead in leads.items() if not lead.beyond_noise]
    if not level:
        return (
            True,
            f"{best} has the highest {name}: {points(leads[others[0]])} more than {others[0]}.",
        )
    if len(level) < len(others):
        below = next(other for other in others if other not in level)
        return True, (
            f"{listed([best, *level])} have the highest {name} and differ within the noise; "
            f"{best} has {points(leads[below])} "
            f"more than {below}."
        )
    head, second = f"no method's {name} is higher by more than the noise", leads[others[0]]
    if second.value == 0:
        return (
            False,
            f"{head}: {best} and {others[0]} have the same, their difference is {points(second)}.",
        )
    return False, f"{head}: {best} has {points(second)} more than {others[0]}."


def _change(evaluated: Evaluated, a: str, b: str, budget: float) -> str:
    """The change of one method between two evaluations."""
    reported = []
    for name, x, y in zip(
        labels(evaluated),
        *(evaluated.scores(one, budget, CLOCKS[0]) for one in (a, b)),
        strict=True,
    ):
        change = mean_difference(x, y, len(evaluated.pairs))
        verdict = (
            "within the noise"
            if not change.beyond_noise
            else "maybe the machine's"
            if evaluated.speeds(a, b).differ
            else "B is better"
            if change.value > 0
            else "B is worse"
        )
        reported.append(f"{name} changes by {points(change)}, {verdict}")
    return f"{a.removeprefix('A: ')} from A to B: {'; '.join(reported)}."


def points(mean: Mean) -> str:
    """Percentage points: `5.5 points (-6.1 to 17.7)`."""
    return f"{100 * mean.value:.1f} points ({100 * mean.low:.1f} to {100 * mean.high:.1f})"


def _of_method(evaluated: Evaluated, method: str, budget: float) -> str:
    names = labels(evaluated)
    values = [mean_score(values) for values in evaluated.scores(method, budget, CLOCKS[0])]
    flat = [s.sample for group in evaluated.methods[method] for s in group]
    done = np.mean([s.finished and s.seconds(CLOCKS[0]) <= budget for s in flat])
    scores = ", ".join(
        f"{name} {_in_words(value)}" for name, value in zip(names, values, strict=True)
    )
    return (
        f"{method} within {budget:.3g} s: {scores}; {100 * done:.0f} % of its samples were "
        "finished."
    )


def _without_limit(evaluated: Evaluated) -> str:
    """Whether methods differ in their scores without a budget."""
    scores = {
        method: evaluated.scores(method, math.inf, CLOCKS[0])[0] for method in evaluated.methods
    }
    reported = ", ".join(
        f"{method} {_in_words(mean_score(values))}" for method, values in scores.items()
    )
    head = f"Without a time limit, {labels(evaluated)[0]}: {reported}"
    compared = evaluated.pairs or list(itertools.combinations(scores, 2))
    if not compared:
        return f"{head}."
    clear = any(
        mean_difference(scores[a], scores[b], len(compared)).beyond_noise for a, b in compared
    )
    if clear:
        return f"{head}; there are differences beyond the noise."
    return f"{head}; the differences are within the noise."


def _in_words(mean: Mean) -> str:
    return f"{100 * mean.value:.1f} % ({100 * mean.low:.1f} to {100 * mean.high:.1f})"


def _fewest(evaluated: Evaluated) -> int:
    return min(len(group) for groups in evaluated.methods.values() for group in groups)


def _time(times: Sequence[float]) -> str:
    return f"{np.median(times):#.3g}" if times else "–"


def _about(evaluated: Evaluated) -> str:
    config = evaluated.manifests[0]["config"]
    models = [str(config[name]) for name in ("target", "draft") if config.get(name)] or [
        "the embedded pair"
    ]
    sampling = config.get("options") or {}
    temperature = f", temperature {sampling['temperature']}" if "temperature" in sampling else ""
    return (
        f"{counted(evaluated.count, 'problem')}, {counted(evaluated.samples, 'sample')} of each; "
        f"{' with '.join(models)}{temperature}"
    )


def _machine(manifest: Any) -> str:
    reported = {
        name: manifest.get(name, "unknown")
        for name in ("bass", "created", "device", "torch", "python", "platform")
    }
    return "bass {bass}, {created}, on {device}; torch {torch}, Python {python}, {platform}".format(
        **reported
    )
