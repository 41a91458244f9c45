"""Runs a benchmark: batch by batch, methods taking turns."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch

from bass.api.checks import check_context
from bass.api.llm import serve
from bass.api.loading import ModelCache, Models
from bass.api.plan import Strategies
from bass.drafters import ModelDraft, SelfDraft
from bass.errors import OptionError
from bass.experiments.bench.measure import Bench, pass_bytes
from bass.experiments.bench.options import BenchOptions, Method
from bass.experiments.bench.record import BenchRecord, Setting

Progress = Callable[[str, int, int], None]


def constant_length(parts: Strategies) -> int | None:
    """The number of tokens that every step drafts; None where it varies, by the policy, a stop rule
    or a drafter that may propose fewer.
    """
    policy = parts.policy
    whole = isinstance(parts.drafter, ModelDraft | SelfDraft) and parts.stop_rule is None
    constant = policy.max_length == 0 or (whole and getattr(policy, "constant_length", False))
    return int(policy.max_length) if constant else None


def prompts_for(models: Models, options: BenchOptions, text: str) -> np.ndarray:
    """Int [rows, length], the prompts of the largest batch: consecutive pieces of the text, or
    random tokens without one. Smaller batches take the first ones.

    Raises `OptionError` or `RequestError` if they fit neither the context nor the text.
    """
    check_context(0, options.prompt_length, options.max_new_tokens, models.context)
    rows, length = max(options.batches), options.prompt_length
    if not text:
        drawn = np.random.default_rng(options.seed)
        return drawn.integers(0, models.target.shape.vocab_size, (rows, length))
    if models.tokenizer is None:
        raise OptionError(
            "`--file` is text, and the target's folder has no tokenizer: leave it out."
        )
    ids = models.tokenizer.encode(text, add_special_tokens=False)
    if len(ids) < rows * length:
        raise OptionError(
            f"`--file` has {len(ids):,} tokens, and {rows} prompts of {length} need "
            f"{rows * length:,}: give a longer text, or lower `--batches` or `--prompt_length`."
        )
    return np.array(ids[: rows * length]).reshape(rows, length)


@final
@dataclass
class BenchRun:
    """Measures what the record lacks; the record grows while it runs."""

    record: BenchRecord
    methods: list[Method]
    options: BenchOptions
    cache: ModelCache
    output: Path | None = None

    def missing(self, method: Method, batch: int) -> int:
        """The number of calls that the setting lacks."""
        done = self.record.find(method.policy, batch)
        return max(self.options.repeats - (0 if done is None else len(done.calls)), 0)

    def complete(self, method: Method, batch: int) -> bool:
        """Whether the setting has all calls, and the parts of a step."""
        done = self.record.find(method.policy, batch)
        return done is not None and done.parts is not None and not self.missing(method, batch)

    @property
    def left(self) -> bool:
        """Whether anything is to be measured."""
        return not all(self.complete(m, b) for m in self.methods for b in self.options.batches)

    def run(self, prompts: np.ndarray, progress: Progress) -> None:
        """Measure; after each round of calls, and when interrupted, the record is saved.

        prompts: those of `prompts_for`.
        """
        try:
            for batch in self.options.batches:
                if not all(self.complete(method, batch) for method in self.methods):
                    self._batch(prompts[:batch].tolist(), progress)
        finally:
            self.save()

    def save(self) -> None:
        """Write the output file, if there is one."""
        if self.output is not None:
            self.record.save(self.output)

    def _batch(self, prompts: list[list[int]], progress: Progress) -> None:
        free()
        batch = len(prompts)
        device = self.methods[0].plan(batch).target.device
        weights = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        turns = {
            method.label: self._calls(method, prompts, weights, progress)
            for method in self.methods
            if not self.complete(method, batch)
        }
        while turns:  # one step of each: its warm-up, a call, or its parts
            for label in list(turns):
                if next(turns[label], None) is None:
                    del turns[label]
            self.save()

    def _calls(
        self, method: Method, prompts: list[list[int]], weights: int, progress: Progress
    ) -> Iterator[bool]:
        """Warm up, call as often as needed, count experts and time the parts; one of these at each
        turn.
        """
        batch = len(prompts)
        name, needed = f"batch {batch}, {method.label}", self.missing(method, batch)
        progress(name, 0, needed + 2)
        plan = method.plan(batch)
        llm = serve(plan, self.cache)
        bench = Bench(llm, prompts, self.options.request, weights)
        warm_up, peak = bench.warm_up(self.options.seed)
        length = self.options.prompt_length + self.options.max_new_tokens // 2
        setting = self.record.find(method.policy, batch) or Setting(
            method.label,
            method.policy,
            batch,
            k := constant_length(plan.parts),
            *pass_bytes(llm, batch, length, k or 0),
            peak,
            warm_up,
        )
        progress(name, 1, needed + 2)
        yield True
        for done in range(needed):
            call = bench.call(self.options.seed + 1 + len(setting.calls))
            setting = replace(setting, calls=[*setting.calls, call])
            self.record.put(setting)
            progress(name, done + 2, needed + 2)
            yield True
        experts = bench.experts(setting.length)
        self.record.put(replace(setting, experts=experts, parts=bench.parts()))
        progress(name, needed + 2, needed + 2)


def free() -> None:
    """Free the engines of the last batch size, with their graphs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
