"""Run folders that no model was run for: a simulation of batched speculative decoding, written in
the format of `bass ablate`.
"""

import itertools
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bass.analysis.frames import request_lines, step_lines
from bass.api.results import Completion
from bass.engine.cost import Work
from bass.engine.requests import StepRecord

TEXTS = ["def ", "fib", "(", "n", "):", "\n", "</script>", '"&quot;"', " for", "é", "→", "\u2028"]
AGREEMENT = 0.8  # of draft and target, at every position
METHODS = {"autoregressive": 0, "fixed": 2, "bass": 4}  # label to draft length
FACTS = {"bandwidth": 4e9, "flops": 1e12, "peak_memory_bytes": 50_000_000, "device": "cpu"}
MADE = {"bass": "0.1.0", "commit": "abc1234", "torch": "2.13", "device": "cpu"}
MANIFEST = MADE | {
    "name": "lengths", "about": "Draft lengths.", "axes": ["method"], "python": "3.11",
    "created": "2025-01-02T03:04:05+00:00", "platform": "Linux", "remarks": [],
    "config": {"target": "models/target"},
}  # fmt: skip


def one_call(
    rng: np.random.Generator, k: int, batch: int, tokens: int, slower: float = 1.0
) -> tuple[list[StepRecord], list[Completion]]:
    """One generation with drafts of k tokens: a request for each row, each of `tokens` tokens."""
    done: list[list[int]] = [[] for _ in range(batch)]
    ended, now, steps = np.zeros(batch), 0.02, list[StepRecord]()
    while (left := np.array([tokens - len(row) for row in done])).any():
        active = left > 0
        drafted = np.where(active, k, 0)
        agreed = np.cumprod(rng.random((batch, k)) < AGREEMENT, axis=1).sum(axis=1).astype(int)
        accepted = np.where(active, np.minimum(agreed, left), 0)
        emitted = np.where(active, np.minimum(accepted + 1, left), 0)
        seconds = float((0.005 + 0.0006 * k + 2e-4 * batch) * rng.uniform(0.97, 1.03) * slower)
        now += seconds + 3e-4
        drafts = rng.integers(0, len(TEXTS), (batch, k))
        for b in np.flatnonzero(active):
            new = [*drafts[b, : accepted[b]], rng.integers(0, len(TEXTS))]
            done[b] += map(int, new[: emitted[b]])
            ended[b] = now
        positions = int((active * (10 + tokens - left + k)).sum())
        work = Work(16_000_000 + 4096 * positions, 10**7 * (k + 1))
        rows = np.where(active, np.arange(batch), -1), drafted, accepted, emitted
        probs = rng.uniform(0.05, 1, (batch, k))
        steps.append(StepRecord(k, *rows, seconds, 3e-4, now, drafts, probs, work))
    completions = [
        Completion(
            0, b, "".join(TEXTS[token] for token in row), row, rng.uniform(-2, 0, tokens).tolist(),
            "length", float(ended[b]) - 0.02, 10, 0.02,
        )
        for b, row in enumerate(done)
    ]  # fmt: skip
    return steps, completions


def write_run(
    folder: Path,
    methods: Mapping[str, int] = METHODS,
    batches: Sequence[int] = (1, 4),
    repeats: int = 3,
    tokens: int = 24,
    categories: Sequence[str] = (),
    slower: Mapping[str, float] = {},
    lossy: Collection[str] = (),
    failed: Collection[str] = (),
    new: Collection[str] = (),
    temperatures: Sequence[float] = (),
    **manifest: Any,
) -> Path:
    """A run folder with the axes `method` and `batch`, whose cells have the ids METHOD-bBATCH.

    methods: label to draft length. categories: of the prompts, of which each is a call; by default
    two prompts without one. slower: the factor of a method's times. lossy: methods that are not
    lossless. failed, new: ids of cells in that state. temperatures: a third axis, with ids
    METHOD-tTEMPERATURE-bBATCH. manifest: replaces its entries.
    """
    cells, axes = [], ["method", *(["temperature"] if temperatures else []), "batch"]
    for batch, temperature in itertools.product(batches, temperatures or [None]):
        own = {} if temperature is None else {"temperature": temperature}
        tail = "".join(f"-t{value}" for value in own.values())
        for method, k in methods.items():
            caveat = "`typical` keeps likely tokens of the draft"
            name = f"{method}{tail}-b{batch}"
            cells.append({
                "id": name, "labels": {"method": method, **own, "batch": batch},
                "settings": {"policy.k": k, "batch": batch}, "work": f"work{tail}-{batch}",
                "autoregressive": k == 0, "lossless": method not in lossy,
                "caveat": caveat if method in lossy else "", "batch_invariant": True,
            })  # fmt: skip
            where = folder / "cells" / name
            where.mkdir(parents=True)
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            for repeat in range(0 if name in {*failed, *new} else repeats):
                for call, category in enumerate(categories or ("", "")):
                    made = one_call(rng, k, batch, tokens, slower.get(method, 1.0))
                    at = {"repeat": repeat, "call": call}
                    of = [{"prompt": call, "category": category}] * batch
                    _append(where / "steps.jsonl", step_lines(made[0], repeat == 0, **at))
                    _append(where / "requests.jsonl", request_lines(made[1], of, **at))
            if name not in new:
                ended = ("failed", "Out of memory.") if name in failed else ("done", None)
                summary = {"cell": name, "key": "", "seconds": 1.0, "facts": FACTS}
                summary |= {"state": ended[0], "error": ended[1], "made_with": MADE | {"files": {}}}
                (where / "summary.json").write_text(json.dumps(summary))
    (folder / "manifest.json").write_text(
        json.dumps(MANIFEST | {"axes": axes, "cells": cells} | manifest)
    )
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    return folder


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
