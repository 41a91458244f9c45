"""The picture of the cost model: the speed-up over the draft length, by the simulator.

The points are simulated; the lines are the closed form. Both use the costs of `CostModel`, in which
the measured figures of an H200 are the default.
"""

from typing import Any

import numpy as np

from bass.analysis import plots
from bass.policies import Fixed
from bass.policies.simulate import Constant, CostModel, simulate
from support.pictures.svg import ASSETS, KINDS, MARGIN, WIDTH, document

FILE = ASSETS / "cost.svg"
K = tuple(range(17))
STEPS = 4000
RATIOS, RATES, BATCHES = (0.02, 0.1, 0.3), (0.5, 0.7, 0.8, 0.9), (1, 8, 32, 128)
HEIGHT = 760
Curve = dict[str, list[float]]


def expected_tau(a: float, k: np.ndarray) -> np.ndarray:
    """Emitted tokens per call: (1 - a^(k+1)) / (1 - a)."""
    return (1 - a ** (k + 1)) / (1 - a)


def curve(a: float, batch: int, cost: CostModel) -> Curve:
    """The speed-up over k = 0 for each k: simulated, and by the closed form."""
    k = np.array(K)
    times = simulate(Fixed(0), Constant(a), batch, cost, STEPS).fixed(max(K))
    predicted = expected_tau(a, k) * float(cost.step(batch, 0)) / cost.step(batch, k)
    return {
        "simulated": [round(float(times[0] / one), 4) for one in times],
        "predicted": [round(float(one), 4) for one in predicted],
    }


def measured() -> dict[str, dict[str, Curve]]:
    """Panel, then series, to four digits."""
    return {
        "acceptance 0.8, batch 1, by c": {
            f"c = {c:g}": curve(0.8, 1, CostModel.from_ratio(c)) for c in RATIOS
        },
        "H200, batch 1, by acceptance": {f"a = {a:g}": curve(a, 1, CostModel()) for a in RATES},
        "H200, acceptance 0.8, by batch": {
            f"batch {batch}": curve(0.8, batch, CostModel()) for batch in BATCHES
        },
    }


def drawn(data: Any) -> str:
    """The three panels as SVG, drawn as the plots of a report are."""
    from matplotlib.figure import Figure

    inches = (WIDTH - MARGIN) / 96, (HEIGHT - MARGIN) / 96
    with plots.style():
        figure = Figure(figsize=inches, layout="constrained")
        panels = figure.subplots(len(data), 1, sharex=True)
        for axes, (title, series) in zip(panels, data.items(), strict=True):
            for number, (label, one) in enumerate(series.items()):
                plots.series(axes, number, K, one["simulated"], label, linestyle="", markersize=3.5)
                axes.plot(K, one["predicted"], color=axes.lines[-1].get_color(), linewidth=1.2)
            axes.axhline(1, color=plots.colours()["faint"], linewidth=0.8)
            axes.set_title(title, fontsize=9, loc="left", fontweight="bold")
            axes.set_ylabel("speed-up")
            axes.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(1, 1), handletextpad=0.1)
        panels[-1].set_xlabel("draft length k")
        plot = plots.Plot("cost", "Speed-up over the draft length", "", figure)
        inner = plot.svg()
    placed = inner.replace("<svg ", f'<svg x="{MARGIN / 2}" y="{MARGIN / 2}" ', 1)
    best = "; ".join(
        f"{title}: " + ", ".join(
            f"{label} best at k = {int(np.argmax(one['simulated']))}, "
            f"{max(one['simulated']):.2f}"
            for label, one in series.items()
        )
        for title, series in data.items()
    )  # fmt: skip
    return document(
        "Speed-up over the draft length, simulated", f"{best}.", data, HEIGHT, [placed], (), KINDS
    )
