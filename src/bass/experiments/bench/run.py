"""Runs a benchmark: batch by batch, methods taking turns."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
import torch

from bass.api.checks import check_context
from bass.api.llm import serve
from bass.api.loading import ModelCache, Models
from bass.api.plan import Strategies
from bass.api.requests import prompt_ids
from bass.drafters import ModelDraft, SelfDraft
from bass.errors import BassError, OptionError
from bass.experiments.bench.measure import Bench, mean_length, pass_bytes
from bass.experiments.bench.options import BenchOptions, Method
from bass.experiments.bench.record import BenchRecord, Setting
from bass.experiments.prompting import TooLongError, first_prompts, lengths, plain_turns
from bass.prompts.entries import Entry
from bass.runs.words import listed

Progress = Callable[[str, int, int], None]


def constant_length(parts: Strategies) -> int | None:
    """The number of tokens that every step drafts; None where it varies, by the policy, a stop rule
    or a drafter that may propose fewer.
    """
    policy = parts.policy
    whole = isinstance(parts.drafter, ModelDraft | SelfDraft) and parts.stop_rule is None
    constant = policy.max_length == 0 or (whole and getattr(policy, "constant_length", False))
    return int(policy.max_length) if constant else None


@final
@dataclass(frozen=True)
class BenchPrompts:
    """The prompts of a benchmark by category; a single one without a name where they have none.

    notes: what is not obvious about them, in sentences. constant: whether all calls have the first
    ones.
    """

    by_category: dict[str, list[list[int]]]
    notes: list[str] = field(default_factory=list)
    constant: bool = False

    def groups(self, category: str, batch: int) -> list[list[list[int]]]:
        """The prompts of consecutive calls: all prompts of the category in order, and from the
        first again where the last group has fewer than `batch`.
        """
        own = self.by_category[category]
        count = 1 if self.constant else -(-len(own) // batch)
        return [[own[(i * batch + row) % len(own)] for row in range(batch)] for i in range(count)]


def prompts_for(
    models: Models, options: BenchOptions, text: str, entries: Sequence[Entry] = ()
) -> BenchPrompts:
    """Those of the entries, the first turn of each; or consecutive pieces of the text, or random
    tokens without one, as many as the largest batch has rows.

    Raises `OptionError` or `RequestError` if they fit neither the context nor the text.
    """
    if entries:
        return _of_entries(models, options, entries)
    check_context(0, options.prompt_length, options.max_new_tokens, models.context)
    rows, length = max(options.batches), options.prompt_length
    if not text:
        drawn = np.random.default_rng(options.seed)
        found = drawn.integers(0, models.target.shape.vocab_size, (rows, length))
        return BenchPrompts({"": found.tolist()}, constant=True)
    if models.tokenizer is None:
        raise OptionError(
            "`--file` is text, and the target's folder has no tokenizer: leave it out."
        )
    ids = models.tokenizer.encode(text, add_special_tokens=False)
    if len(ids) < rows * length:
        raise OptionError(
            f"`--file` has {len(ids):,} tokens, and {rows} prompts of {length} need "
            f"{rows * length:,}: give a longer text, or lower `--batches` or `--prompt-length`."
        )
    pieces = np.array(ids[: rows * length]).reshape(rows, length).tolist()
    return BenchPrompts({"": pieces}, constant=True)


def _of_entries(models: Models, options: BenchOptions, entries: Sequence[Entry]) -> BenchPrompts:
    """The first turns that fit the context."""
    vocabulary, tokenizer = models.target.shape.vocab_size, models.tokenizer
    first = [entry.first_turn() for entry in entries]
    room = models.context - options.max_new_tokens
    sizes = lengths(tokenizer, vocabulary, first, models.context)
    for size in sizes:
        if isinstance(size, BassError) and not isinstance(size, TooLongError):
            raise size
    kept = [
        entry
        for entry, size in zip(first, sizes, strict=True)
        if isinstance(size, int) and size <= room
    ]
    if not kept:
        raise OptionError(
            f"None of the {len(entries)} prompts fits the context of {models.context} tokens next "
            f"to {options.max_new_tokens} new ones: lower `--max-new-tokens`."
        )
    by: dict[str, list[list[int]]] = {}
    made = first_prompts(tokenizer, kept, models.context)
    for i, (entry, prompt) in enumerate(zip(kept, made, strict=True)):
        ids = prompt_ids(tokenizer, vocabulary, models.context, prompt, i)
        by.setdefault(entry.category, []).append(ids)
    notes = []
    if out := Counter(e.category for e in first) - Counter(e.category for e in kept):
        named = ", ".join(f"{count} of {name}" for name, count in out.items() if name)
        notes.append(
            f"NOTE: {len(first) - len(kept)} of {len(first)} prompts are left out"
            f"{named and f' ({named})'}, since with {options.max_new_tokens} new tokens they do "
            f"not fit the context of {models.context}."
        )
    if several := sum(entry.turns > 1 for entry in entries):
        notes.append(
            f"NOTE: {several} of {len(entries)} prompts have several turns, of which only the "
            "first is answered here: `bass ablate` answers all."
        )
    notes += _unmeasured(by, options)
    if plain_turns(kept, tokenizer):
        notes.append(
            "NOTE: conversations are plain text with `User:` and `Assistant:`, since the target "
            "has no chat template."
        )
    return BenchPrompts(by, notes)


def _unmeasured(by: dict[str, list[list[int]]], options: BenchOptions) -> list[str]:
    """A sentence on the prompts that no call has: each takes as many as rows, in their order."""
    short = {
        batch: [
            f"{batch * options.repeats} of {len(own)}" + (f" prompts of `{name}`" if name else "")
            for name, own in by.items()
            if batch * options.repeats < len(own)
        ]
        for batch in options.batches
    }
    parts = [f"at batch {batch}, {listed(ones)}" for batch, ones in short.items() if ones]
    if not parts:
        return []
    return [
        f"NOTE: {options.repeats} calls of as many prompts as rows measure only the first ones: "
        f"{'; '.join(parts)}. Raise `--repeats` for more."
    ]


@final
@dataclass
class BenchRun:
    """Measures what the record lacks; the record grows while it runs."""

    record: BenchRecord
    methods: list[Method]
    options: BenchOptions
    cache: ModelCache
    output: Path | None = None

    def missing(self, method: Method, batch: int, category: str) -> int:
        """The number of calls that the setting lacks."""
        done = self.record.find(method.policy, batch, category)
        return max(self.options.repeats - (0 if done is None else len(done.calls)), 0)

    def complete(self, method: Method, batch: int, category: str) -> bool:
        """Whether the setting has all calls, and the parts of a step."""
        done = self.record.find(method.policy, batch, category)
        return (
            done is not None
            and done.parts is not None
            and not self.missing(method, batch, category)
        )

    def left(self, categories: Iterable[str]) -> bool:
        """Whether anything is to be measured."""
        return not all(
            self.complete(method, batch, category)
            for method in self.methods
            for batch in self.options.batches
            for category in categories
        )

    def run(self, prompts: BenchPrompts, progress: Progress) -> None:
        """Measure; after each round of calls, and when interrupted, the record is saved.

        prompts: those of `prompts_for`.
        """
        try:
            for batch in self.options.batches:
                for name in prompts.by_category:
                    if not all(self.complete(method, batch, name) for method in self.methods):
                        self._batch(name, prompts.groups(name, batch), progress)
        finally:
            self.save()

    def save(self) -> None:
        """Write the output file, if there is one."""
        if self.output is not None:
            self.record.save(self.output)

    def _batch(self, category: str, groups: list[list[list[int]]], progress: Progress) -> None:
        free()
        batch = len(groups[0])
        device = self.methods[0].plan(batch).target.device
        weights = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        turns = {
            method.label: self._calls(method, category, groups, weights, progress)
            for method in self.methods
            if not self.complete(method, batch, category)
        }
        while turns:  # one step of each: its warm-up, a call, or its parts
            for label in list(turns):
                if next(turns[label], None) is None:
                    del turns[label]
            self.save()

    def _calls(
        self,
        method: Method,
        category: str,
        groups: list[list[list[int]]],
        weights: int,
        progress: Progress,
    ) -> Iterator[bool]:
        """Warm up, call as often as needed, count experts and time the parts; one of these at each
        turn.
        """
        batch, needed = len(groups[0]), self.missing(method, len(groups[0]), category)
        name = f"batch {batch}, {category and f'{category}, '}{method.label}"
        progress(name, 0, needed + 2)
        plan = method.plan(batch)
        llm = serve(plan, self.cache)
        used = groups[: self.options.repeats]
        bench = Bench(llm, used, self.options.request, weights)
        warm_up, peak = bench.warm_up(self.options.seed)
        length = mean_length(used) + self.options.max_new_tokens // 2
        setting = self.record.find(method.policy, batch, category) or Setting(
            method.label,
            method.policy,
            batch,
            k := constant_length(plan.parts),
            *pass_bytes(llm, batch, length, k or 0),
            peak,
            warm_up,
            category=category,
        )
        progress(name, 1, needed + 2)
        yield True
        for done in range(needed):
            number = len(setting.calls)
            call = bench.call(self.options.seed + 1 + number, number)
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
