"""Measures one setting: warm-up, timed calls, parts of a step."""

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from bass.api.generation import Generation
from bass.api.llm import LLM
from bass.api.options import RequestOptions
from bass.api.results import Result
from bass.drafters import ModelDrafter
from bass.engine.cost import (
    PassCost,
    copy_bandwidth,
    data_sheet_bandwidth,
    measure_peaks,
    pass_cost,
    total,
)
from bass.engine.graphs import GraphedStep
from bass.engine.parts import parts_of, seconds_of, without_graphs
from bass.engine.run import Run
from bass.engine.step import Step
from bass.experiments.bench.experts import experts_read
from bass.experiments.bench.record import Call, ExpertsRead, Machine, Parts, WarmUp
from bass.ops.batch_state import last
from bass.ops.noise import step_noise
from bass.provenance.environment import device_name
from bass.records import Sequences, Window


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """The device and its peaks."""
    name, peaks = device_name(device), measure_peaks(device, dtype)
    copied = copy_bandwidth(device)
    return Machine(name, copied, peaks.bandwidth, peaks.flops, data_sheet_bandwidth(name))


def pass_bytes(llm: LLM, batch: int, length: int, k: int = 0) -> tuple[int, int]:
    """The bytes that a pass of the target and a pass of the drafter read, all rows at `length`
    tokens. Of a mixture of experts it depends on the k drafted tokens in the target's pass.
    """
    drafting = [] if llm.models.draft is None else [pass_cost(llm.models.draft)]
    if layers := llm.parts.drafter.target_layers:
        drafting.append(pass_cost(llm.models.target, layers))

    def read(cost: PassCost, tokens: int) -> int:
        keys = cost.keys(np.ones(batch, int), np.full(batch, length))
        return cost.model.bytes_read(tokens) + keys

    target = read(pass_cost(llm.models.target), batch * (k + 1))
    return target, sum(read(cost, batch) for cost in drafting)


def mean_length(groups: Sequence[Sequence[Sequence[int]]]) -> int:
    """The mean length of all prompts, in tokens."""
    return round(statistics.fmean(len(prompt) for group in groups for prompt in group))


@final
@dataclass
class Bench:
    """The calls of one setting.

    groups: the prompts of the calls, one group for each; after the last comes the first again.
    request: the options of `LLM.stream` but for the seed. weights: bytes of the device that were
    allocated before any engine was built.
    """

    llm: LLM
    groups: list[list[list[int]]]
    request: dict[str, Any]
    weights: int = 0
    _last: Generation | None = field(default=None, repr=False)

    def warm_up(self, seed: int) -> tuple[WarmUp, int | None]:
        """Capture and compile in advance, and call once; also the most memory, weights included."""
        device = self.llm.models.device
        before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        began = time.perf_counter()
        if len(self.groups) > 1:
            options = RequestOptions(**self.request, seed=seed)
            self.llm.warm_up_for([(group, options) for group in self.groups])
        self.llm.warm_up(self.groups[0], **self.request, seed=seed)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
        generation, result, wall = self._called(seed, 0)
        step = generation.run.step
        graphs = len(step.captured) if isinstance(step, GraphedStep) else 0
        peak = None
        if device.type == "cuda":
            peak = self.weights + torch.cuda.max_memory_allocated(device) - before
        return WarmUp(seconds, graphs, wall, result.stats.capture_seconds), peak

    def call(self, seed: int, number: int = 0) -> Call:
        """One timed call, with the prompts of its number."""
        generation, result, wall = self._called(seed, number)
        prefilled = max(generation.run.trace.prefilled.values())
        stats, steps = result.stats, result.trace
        work, between = total(s.work for s in steps), [s.host_seconds for s in steps]
        return Call(
            seed=seed,
            wall_seconds=wall - prefilled,
            capture_seconds=stats.capture_seconds,
            prefill_seconds=prefilled,
            first=stats.first or 0.0,
            last=stats.last or 0.0,
            all=stats.all or 0.0,
            steps=stats.steps,
            row_steps=stats.row_steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            emitted=stats.emitted,
            draft_passes=sum(s.k for s in steps),
            bytes=work.bytes,
            flops=work.flops,
            flops_kept=work.flops_kept,
            step_seconds=sum(s.seconds for s in steps),
            step_median=statistics.median(s.seconds for s in steps),
            between_median=statistics.median(between),
            between_p90=float(np.quantile(between, 0.9)),
        )

    def parts(self) -> Parts | None:
        """The parts of a step of the last call's rows, in the middle of their new tokens and at the
        median draft length; None for a step whose parts are not known.
        """
        run = self._run
        length = mean_length([self._prompts]) + self.request["max_new_tokens"] // 2
        return parts_at(run.step, run.sequences, self._median_length, length)

    def experts(self, k: int | None) -> ExpertsRead | None:
        """The experts that steps of k drafted tokens touch in the text of the last call, for a
        mixture. k: None for the median draft length.

        It reads keys that `parts` replaces, and comes before it.
        """
        run, k = self._run, self._median_length if k is None else k
        length = min(map(len, self._prompts))
        lengths = range(length + 1, length + self.request["max_new_tokens"] - k)
        lengths = lengths or range(length, length + 1)
        return experts_read(self.llm.models.target, run.step, run.sequences, k, lengths)

    @property
    def _run(self) -> Run:
        """The run of the last call."""
        assert self._last is not None, "`warm_up` comes first"
        return self._last.run

    @property
    def _median_length(self) -> int:
        return int(statistics.median(s.k for s in self._run.trace.steps))

    @property
    def _prompts(self) -> list[list[int]]:
        """Those of the last call."""
        return [request.prompt for request in self._run.requests]

    def _called(self, seed: int, number: int) -> tuple[Generation, Result, float]:
        """A call, its result, and its wall time from the start of the run to the last token."""
        self._last = None
        prompts = self.groups[number % len(self.groups)]
        generation = self.llm.stream(prompts, **self.request, seed=seed)
        began = time.perf_counter()
        for _ in generation:
            pass
        wall = time.perf_counter() - began
        self._last = generation
        return generation, generation.result(), wall


@torch.inference_mode()
def parts_at(step: Step, rows: Sequences, k: int, length: int) -> Parts | None:
    """`parts_of` a step that drafts k tokens, all rows at `length` tokens; afterwards no row is
    active.
    """
    inner = without_graphs(step)
    if inner is None:
        return None
    rows.lens.fill_(length)
    rows.limits.fill_(rows.capacity)
    rows.active.fill_(True)
    parts = parts_of(step, rows, k)
    sampling = 0.0
    if k and isinstance(inner.drafter, ModelDrafter):
        drawing = functools.partial(_sample_drafts, inner.drafter, rows, k, step.span)
        sampling = drawing(isinstance(step, GraphedStep), length)
    rows.active.fill_(False)
    return Parts(k, parts["draft"], parts["verify"], parts["sample"], sampling)


def _sample_drafts(
    drafter: ModelDrafter, rows: Sequences, k: int, span: Any, graphed: bool, length: int
) -> float:
    """Seconds of the warps and draws of k drafted tokens."""
    noise = step_noise(rows.keys, rows.steps, rows.lens, k)
    logits = drafter.scorer(Window(*last(rows, 1), span(length, rows.capacity))).logits

    def sample() -> None:
        drafted, probs = rows.tokens.new_zeros(len(rows.lens), k), []
        for i in range(k):
            probs.append(drafter.warp(logits, rows.history(drafted[:, :i]))[:, 0])
            drafted[:, i] = drafter.draw(probs[-1], noise, i)
        torch.stack(probs, 1)

    return seconds_of(sample, graphed)
