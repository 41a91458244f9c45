"""The seconds of a step by draft length: measured once for a machine, a pair, its strategies and a
batch size, and kept on disk.
"""

import hashlib
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import torch

from bass.engine.assembly import Engine, ModelPair, Storage, Strategies, assemble
from bass.engine.requests import Request
from bass.engine.run import EngineRun
from bass.interfaces.lengths import captured_lengths
from bass.policies import Fixed
from bass.processor import cpu_name
from bass.records import CacheBudget

STEPS = 4  # of each length; the first may compile
MOST_SECONDS = 2.0  # for all lengths of a batch size
PROMPT = [0, 0]


def folder() -> Path:
    """Where measured times are kept: `$BASS_CACHE`, else `bass` in the user's cache folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BASS_CACHE") or Path(caches) / "bass")


@final
@dataclass
class StepTimes:
    """The times of a pair with its strategies, by batch size."""

    models: ModelPair
    parts: Strategies
    graphs: bool
    known: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def of(self, batch: int, captured: Engine | None) -> tuple[float, ...]:
        """The seconds of a step that drafts 0, 1, ... `max_length` tokens for `batch` rows.

        captured: the engine of this size with its graphs; None: measured on storage of its own.
        """
        if batch not in self.known:
            facts = self.facts(batch)
            name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
            file = folder() / f"step-times-{name}.json"
            try:
                seconds = json.loads(file.read_text(encoding="utf-8"))["seconds"]
            except (OSError, ValueError, KeyError):
                seconds = self.measured(captured or self.scratch(batch))
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(facts | {"seconds": seconds}), encoding="utf-8")
            self.known[batch] = tuple(seconds)
        return self.known[batch]

    def facts(self, batch: int) -> dict[str, object]:
        """What the times depend on."""
        device = self.models.device
        gpu = device.type == "cuda"
        models = [m for m in (self.models.target, self.models.draft) if m is not None]
        return {
            "device": torch.cuda.get_device_name(device) if gpu else cpu_name(),
            "threads": None if gpu else torch.get_num_threads(),
            "torch": torch.__version__,
            "models": [
                [str(one.shape), sum(tensor.nbytes for tensor in one.parameters())]
                for one in models
            ],
            "strategies": [
                repr(part) for name, part in vars(self.parts).items() if name != "policy"
            ],
            "graphs": self.graphs,
            "lengths": captured_lengths(self.parts.policy),
            "batch": batch,
        }

    def scratch(self, batch: int) -> Engine:
        """An engine on storage of its own."""
        positions = len(PROMPT) + STEPS * (self.parts.policy.max_length + 1)
        budget = CacheBudget.of(np.full(batch, positions))
        return assemble(Storage(self.models, self.parts, budget, 1), batch, self.graphs)

    def measured(self, engine: Engine) -> list[float]:
        """Measure the lengths that the policy may request, the most important first, for at most
        `MOST_SECONDS`; the others lie on the lines between their neighbours.
        """
        lengths = captured_lengths(self.parts.policy)
        first = [k for k in (0, 1, 4, lengths[-1], 2, 8) if k in lengths]
        found: dict[int, float] = {}
        seconds_of(engine, 0, math.inf)  # loads libraries and records passes
        began = time.perf_counter()
        for k in dict.fromkeys([*first, *lengths]):
            if len(found) < 2 or time.perf_counter() - began < MOST_SECONDS:
                found[k] = seconds_of(engine, k, began + MOST_SECONDS)
        known = sorted(found)
        seconds = np.interp(np.arange(lengths[-1] + 1), known, [found[k] for k in known])
        if known[-1] < lengths[-1]:  # beyond the last: the line of the first two
            slope = (found[known[-1]] - found[0]) / known[-1]
            beyond = np.arange(known[-1] + 1, lengths[-1] + 1)
            seconds[beyond] = found[known[-1]] + slope * (beyond - known[-1])
        return np.maximum.accumulate(seconds).tolist()  # noise may make a longer draft cheaper


def seconds_of(engine: Engine, k: int, until: float) -> float:
    """The lower quartile of the seconds of steps that draft k tokens; the first may compile."""
    rows, capacity = len(engine.sequences.lens), engine.sequences.capacity
    request = Request(PROMPT, capacity, 0)
    run = EngineRun([request] * rows, engine.sequences, engine.step, Fixed(k))
    steps = run.trace.steps
    for _ in run:
        if len(steps) >= STEPS or (steps and time.perf_counter() > until):
            break
    engine.sequences.active.fill_(False)
    return float(np.quantile([s.seconds + s.host_seconds for s in steps[1:] or steps], 0.25))
