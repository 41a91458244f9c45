"""The parts of a step and the host's waits on a GPU, and a file of results, for the other
benchmarks.
"""

import hashlib
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bass
from bass.api.llm import LLM
from bass.drafters import ModelDrafter
from bass.drafters.eagle import ChainDrafter
from bass.engine.graphs import GraphedStep
from bass.engine.parts import parts_at, seconds_of, without_graphs
from bass.engine.step import Step
from bass.ops.batch_state import last
from bass.ops.noise import step_noise
from bass.records import Sequences, Window

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def parts_in_ms(llm: LLM, trace: list[Any], length: int) -> dict[str, Any]:
    """`parts_at` the engine of the last run, at its median draft length, in ms.

    host: the rest of a step's wall time. sampling_share: warps, draws, verdict and commit, of draft
    and target, as a share of a step's wall time.
    """
    step, between = (
        statistics.median(times)
        for times in ([s.seconds for s in trace], [s.host_seconds for s in trace])
    )
    storage = llm._engines.storage
    if storage is None:
        return {}
    k = int(statistics.median(s.k for s in trace))
    engine = storage.engine(len(trace[0].active))
    found = parts_at(engine.step, engine.sequences, k, length)
    if not found:
        return {}
    parts = {name.removesuffix("_ms"): ms for name, ms in found.items()}
    wall = (step + between) * 1e3
    parts["host"] = wall - sum(parts.values())
    parts["draft_sampling"] = drawing_seconds(engine.step, engine.sequences, k, length) * 1e3
    sampling = parts["draft_sampling"] + parts["sample"]
    ms = {part: round(time, 4) for part, time in parts.items()}
    return {"parts_k": k, "parts_ms": ms, "sampling_share": sampling / wall}


@torch.inference_mode()
def drawing_seconds(step: Step, rows: Sequences, k: int, length: int) -> float:
    """Seconds of the warps and draws of k drafted tokens; 0 for a drafter that is neither a draft
    model nor a head that drafts token by token.
    """
    inner = without_graphs(step)
    if not k or not isinstance(inner.drafter, ModelDrafter | ChainDrafter):
        return 0.0
    drafter, chain = inner.drafter, inner.drafter.chain
    rows.lens.fill_(length)
    rows.active.fill_(True)
    span = step.shapes.span(length, rows.capacity)
    noise = step_noise(rows.keys, rows.steps, rows.lens, k)
    logits = (
        drafter.logits(drafter.last.values[:, None])
        if isinstance(drafter, ChainDrafter)
        else drafter.scorer(Window(*last(rows, 1), span)).logits
    )

    def draw() -> None:
        drafted, probs = rows.tokens.new_zeros(len(rows.lens), k), []
        for i in range(k):
            probs.append(chain.warp(logits, rows.history(drafted[:, :i]))[:, 0])
            drafted[:, i] = chain.draw(probs[-1], noise, i)
        torch.stack(probs, 1)

    found = seconds_of(draw, isinstance(step, GraphedStep))
    rows.active.fill_(False)
    return found


def synchronisations(
    llm: LLM, prompts: list[list[int]], options: dict[str, Any], tokens: tuple[int, int] = (32, 128)
) -> float:
    """The host's waits for the device per step, from two runs with different numbers of steps."""
    counts, steps = [], []
    for new in tokens:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        ) as profile:
            trace = llm.generate(prompts, **options | {"max_new_tokens": new}).trace
        counts.append(sum(event.count for event in profile.key_averages() if event.key in WAITS))
        steps.append(len(trace))
    return (counts[1] - counts[0]) / (steps[1] - steps[0])


def kernels_per_step(
    llm: LLM, prompts: list[list[int]], options: dict[str, Any], tokens: tuple[int, int] = (32, 128)
) -> dict[str, tuple[float, float]]:
    """Launches and ms of each kernel, copy and fill of a step by name, the longest first, from two
    runs with different numbers of steps.
    """
    runs: list[dict[str, tuple[int, float]]] = []
    steps = [
        len(llm.generate(prompts, **options | {"max_new_tokens": new}).trace) for new in tokens
    ]
    for new in tokens:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            llm.generate(prompts, **options | {"max_new_tokens": new})
        events = profile.key_averages()
        times = {e.key: (e.count, e.self_device_time_total / 1e3) for e in events}
        runs.append({name: own for name, own in times.items() if own[1]})  # not the host's calls
    few, many = runs
    more = steps[1] - steps[0]
    found = {
        name: tuple((x - y) / more for x, y in zip(both, few.get(name, (0, 0)), strict=True))
        for name, both in many.items()
    }
    return dict(sorted(found.items(), key=lambda one: -one[1][1]))


def source() -> str:
    """A digest of the package's source, which also identifies uncommitted changes."""
    folder = Path(bass.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """The results of each setting, saved to a file after each one, if a path is given.

    Results of another source or device are discarded.
    """

    def __init__(self, path: Path | None, device: str) -> None:
        self.path, self.of = path, {"source": source(), "device": device}
        self.found: dict[str, Any] = {}
        if path is not None and path.exists():
            self.found = self._before(path)

    def _before(self, path: Path) -> dict[str, Any]:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            results = before["results"] | {}
        except (ValueError, LookupError, TypeError) as error:
            raise SystemExit(f"`{path}` is no file of results: name another.") from error
        return results if {name: before.get(name) for name in self.of} == self.of else {}

    def measured(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of a setting from the file, or else from `measure`."""
        if key not in self.found:
            self.found[key] = measure()
            self.write({})
        return self.found[key]

    def write(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write all results and `record` to the file, and return them."""
        whole = self.of | record | {"results": self.found}
        if self.path is not None:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(whole) + "\n", encoding="utf-8")
            part.replace(self.path)
        return whole
