"""Folders of evaluations that no model was run for, in the format of `bass eval`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bass.runs.conditions import ConditionLine
from bass.runs.evaluation_folder import Folder, Sample, Score, digest, opened

SECONDS = {"batched": 1.0, "single": 2.0, "plain": 3.0}  # about which a sample is finished
ABOUT = {
    "bass": "0.1.0",
    "created": "2025-01-02T03:04:05+00:00",
    "device": "cpu",
    "torch": "2.13",
    "python": "3.11",
    "platform": "Linux",
}


def write_evaluation(
    path: Path,
    methods: Sequence[str] = ("batched", "single", "plain"),
    task: str = "humaneval",
    problems: int = 40,
    samples: int = 4,
    passing: float = 0.4,
    slower: float = 1.0,
    unscored: int = 0,
    budgets: Sequence[float] = (),
    ks: Sequence[int] = (),
    seed: int = 0,
    products: Sequence[float | None] = (0.01,),
    **about: Any,
) -> Path:
    """Every method answers as well; passing: the share of samples that are right. unscored:
    problems of the last method without scores. products: calibrations, which the problems have in
    turn; none: the state of the machine is not recorded.
    """
    config = {
        "task": task,
        "problems": f"{task}-{problems}",
        "target": None,
        "draft": None,
        "options": {"temperature": 0.2},
    }
    with opened(path, config, ABOUT | {"problems": problems, "lossless": True} | about) as folder:
        for method in methods:
            _write_method(
                folder,
                method,
                problems,
                samples,
                passing,
                slower,
                products,
                np.random.default_rng([seed, sorted(SECONDS).index(method)]),
            )
        if unscored:
            file = path / methods[-1] / "scores.jsonl"
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join(lines[: (problems - unscored) * samples]))
        elif budgets or ks:
            curve = [{"budget": budget} for budget in budgets]
            folder.finish(
                {
                    "methods": {
                        method: {"curve": curve, "pass@k": dict.fromkeys(map(str, ks), 0.5)}
                        for method in methods
                    }
                }
            )
    return path


def change_manifest(path: Path, manifest: Any) -> None:
    """Another manifest, of which the samples are, as if they had been made with it."""
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for mark in path.glob("*/made_with.json"):
        mark.unlink()


def machine(number: int, product: float | None) -> ConditionLine:
    """The state of a machine while a problem was sampled."""
    began = "2026-01-01T00:00:00.000+00:00"
    return ConditionLine(number, began, 0.5, 0.25, 2500.0, product, 0.004, None, None, None, None)


def _write_method(
    folder: Folder,
    method: str,
    problems: int,
    samples: int,
    passing: float,
    slower: float,
    products: Sequence[float | None],
    rng: np.random.Generator,
) -> None:
    for problem in range(problems):
        task_id, group = f"P/{problem}", []
        ends = SECONDS[method] * slower * rng.uniform(0.5, 1.5, samples)
        for index, seconds in enumerate(ends.cumsum() / 2 if method == "single" else ends):
            finish = "time" if rng.random() < 0.1 else "eos"
            group.append(
                Sample(
                    task_id,
                    index,
                    f"text {index}",
                    [1, 2],
                    -float(rng.random()),
                    finish,
                    float(seconds),
                    float(seconds) + 0.1,
                )
            )
        if products:
            folder.add_conditions(method, machine(problem, products[problem % len(products)]))
        folder.add_samples(method, task_id, group)
        easy = np.random.default_rng(problem).beta(passing, 1 - passing)  # the same for all methods
        for sample in group:
            value = float(rng.random() < easy)
            folder.add_score(method, Score(task_id, sample.sample, digest(sample.text), value))
