"""The time-budget curve of BASS (Qian et al., 2024):

First and All against the budget, for each method, by both clocks.
"""

import itertools

import numpy as np
from jaxtyping import Float

from bass.analysis.evaluated import POINTS, Evaluated
from bass.analysis.intervals import mean_scores
from bass.analysis.scores import CLOCKS
from bass.analysis.statistics import LEVEL
from bass.report.drawing import Plot, legend, new_figure, series, style, thinned
from bass.report.palette import SERIES, colours

MOST_BANDS = 3  # more bands would hide each other
TITLES = {"prefill": "from the end of the prefill", "start": "from the start of the request"}


def curves(evaluated: Evaluated) -> list[Plot]:
    """One plot for each clock; none without a finished sample.

    Raises an OptionError without matplotlib.
    """
    with style():
        return [_curve(evaluated, clock) for clock in CLOCKS if len(times(evaluated, clock)) > 1]


def times(evaluated: Evaluated, clock: str) -> Float[np.ndarray, " points"]:
    """Budgets at which curves are drawn: 0, and the (thinned) times at which samples finished."""
    ended = [
        s.sample.seconds(clock)
        for groups in evaluated.methods.values()
        for group in groups
        for s in group
        if s.sample.finished
    ]
    found = np.unique([0.0, *ended])
    return found[thinned(len(found), POINTS)]


def _curve(evaluated: Evaluated, clock: str) -> Plot:
    figure, panels = new_figure(2, sharey=True)
    at = times(evaluated, clock)
    scores = [evaluated.scores_within(method, at.tolist(), clock) for method in evaluated.methods]
    found = iter(mean_scores(np.concatenate([values for both in scores for values in both])))
    for number, method in enumerate(evaluated.methods):
        for ax in panels:
            means = [*itertools.islice(found, len(at))]
            middle, low, high = (
                100 * np.array([getattr(mean, name) for mean in means])
                for name in ("value", "low", "high")
            )
            series(
                ax,
                number,
                at.tolist(),
                middle.tolist(),
                method,
                drawstyle="steps-post",
                markevery=(3 * number, 12),
            )
            if len(evaluated.methods) <= MOST_BANDS:
                ax.fill_between(
                    at,
                    low,
                    high,
                    step="post",
                    color=colours()[SERIES[number]],
                    alpha=0.15,
                    linewidth=0,
                )
    for ax, name in zip(panels, ("First", "All"), strict=True):
        ax.set(
            title=name,
            xlabel=f"budget in seconds, {'from prefill' if clock == 'prefill' else 'from start'}",
            xlim=(0, None),
        )
    top = max(panels[0].get_ylim()[1], 1.0)
    # starts below 0, so that the axis does not hide the line of a method without a right answer
    panels[0].set(
        ylabel="ROUGE-2, %" if evaluated.kind == "rouge2" else "% of the problems",
        ylim=(-0.03 * top, top),
    )
    legend(figure, panels[0], len(evaluated.methods))
    caption = (
        f"The score of the samples finished within a number of seconds {TITLES[clock]}. First: "
        "the one that the model considers most "
    )
    bands = f"Bands: {100 * LEVEL:.0f} % intervals over problems."
    caption += (
        "probable; All: the best one. "
        f"{bands if len(evaluated.methods) <= MOST_BANDS else 'The tables have intervals.'}"
    )
    return Plot(f"budget-{clock}", f"Time-budget curve, {TITLES[clock]}", caption, figure)
