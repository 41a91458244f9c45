"""The plot of the README's ablation: tau over the draft length, from a run of its config."""

import tempfile
from typing import Any

import yaml

from bass.analysis import plots
from bass.experiments import grid, runner
from support.pages import files
from support.pictures.svg import ASSETS, KINDS, MARGIN, WIDTH, document

FILE = ASSETS / "ablation.svg"
CONFIG = "temperatures.yaml"
HEIGHT = 260
CPU = {"device": "cpu", "dtype": "float32"}
Line = list[tuple[int, float]]


def measured() -> dict[str, Line]:
    """Draft length and tau of each cell, to three digits, by temperature."""
    raw = yaml.safe_load(files("README.md")[CONFIG])
    plan = grid.plan(raw | {"name": "temperatures", "base": raw["base"] | CPU})
    with tempfile.TemporaryDirectory() as folder:
        cells = runner.run(plan, folder).cells
    return {
        f"temperature {temperature:g}": [
            (int(k), round(float(tau), 3))
            for k, tau in zip(own["policy.k"], own["tau"], strict=True)
        ]
        for temperature, own in cells.groupby("temperature")
    }


def drawn(data: Any) -> str:
    """The lines as SVG, drawn as the plots of a report are."""
    from matplotlib.figure import Figure

    with plots.style():
        inches = (WIDTH - MARGIN) / 96, (HEIGHT - MARGIN) / 96
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        for number, (label, line) in enumerate(data.items()):
            lengths, taus = zip(*line, strict=True)
            plots.series(axes, number, lengths, taus, label)
            axes.set_xticks(lengths)
        axes.set(xlabel="draft length k", ylabel="tau: tokens per row step", ylim=(0, None))
        axes.legend(loc="lower right")
        inner = plots.Plot("ablation", "Tau over the draft length", "", figure).svg()
    placed = inner.replace("<svg ", f'<svg x="{MARGIN / 2}" y="{MARGIN / 2}" ', 1)
    said = "; ".join(
        f"{label}: " + ", ".join(f"{tau:.2f} at k = {k}" for k, tau in line)
        for label, line in data.items()
    )
    return document("Tau over the draft length", f"{said}.", data, HEIGHT, [placed], (), KINDS)
