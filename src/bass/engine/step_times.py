"""The seconds of a step by draft length: measured once for a machine, a pair, its strategies and a
batch size, and kept on disk.
"""

import contextlib
import hashlib
import itertools
import json
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bass.drafters.several import Choice
from bass.engine.assembly import Engine, ModelPair, Storage, Strategies
from bass.engine.cost import timed
from bass.engine.prefill import Part
from bass.engine.requests import Request
from bass.engine.run import EngineRun
from bass.files import digests
from bass.host_records import Feedback
from bass.interfaces import Drafter, DraftLengthPolicy, DraftMethod
from bass.interfaces.policy import CAUGHT_UP, DrafterTimes, captured_lengths
from bass.option import called
from bass.process import cpu_name
from bass.records import CacheBudget, Draft, Noise, Sequences

ROUNDS = 4
MOST_SECONDS = 2.0  # for all batch sizes of a load, or for one where a call has its own storage
PROMPT = 64  # tokens: in longer contexts drafts cost relatively less
FIRST = (4, 1, 2, 8, 16)  # the lengths that say most, and on a CPU the only ones
LEAST_TIMED = 2  # lengths, whatever the time
# Steps without drafts right after others take up to 1.5 times as long on a CPU: turns of them at
# the beginning of a round, and the last steps that count.
SETTLED, COUNTED = 3, 3
CATCH_UPS = 3
ALONE = 0.95  # share of the time in which this thread runs if no other process holds its core
BUSY = (
    "Other processes used the cores while the times of steps were measured, by which `auto` "
    "chooses draft lengths, and trims choose budgets. They may be wrong, and are measured again by "
    "the next process."
)


def folder() -> Path:
    """Where measured times are kept: `$BASS_CACHE`, else `bass` in the user's cache folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BASS_CACHE") or Path(caches) / "bass")


@final
@dataclass(frozen=True)
class InTurn(DraftLengthPolicy[tuple[int, int]]):
    """The given lengths in turn, `each` steps of each, by one drafter, of the first `rows` or of
    all; the state is the batch size and the step.
    """

    order: tuple[int, ...]
    max_length: int
    each: int
    start: int
    index: int = 0
    rows: int | None = None

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, self.start

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        lengths = np.zeros(batch, dtype=np.int32)
        lengths[: self.rows] = self.order[step // self.each % len(self.order)]
        return lengths

    def lengths_ahead(self, state: tuple[int, int]) -> np.ndarray:
        return self.lengths((state[0], state[1] + 1))

    def drafter(self, state: tuple[int, int]) -> int:
        return self.index

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


class Zeros(Drafter):
    """As many tokens as are requested, at no cost."""

    @classmethod
    def in_place_of(cls, method: DraftMethod) -> DraftMethod:
        """The method, where each one without a model is replaced: it may have nothing to draft."""
        if isinstance(method, Choice):
            return replace(method, methods=[*map(cls.in_place_of, method.methods)])
        uses = method.needs_draft or method.target_layers or method.target_features
        return method if uses else cls()

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        return Draft(sequences.tokens.new_zeros(len(lengths), k), None, lengths)


class Seconds(NamedTuple):
    """Of each drafter, those of a step that drafts 0, 1, ... `max_length` tokens for all rows, and
    of a catch-up, as `DraftLengthPolicy.timed`. All have the first one's time of no drafts, others
    in proportion. token: of the target's pass over one more token of each row, if a trim reads it.
    """

    drafters: DrafterTimes
    token: float = 0.0

    @property
    def shares(self) -> list[list[float]]:
        """`Drafted.cost` by drafter and length of the draft."""
        return [
            [self.token / max(one - k * self.token, of[0]) for k, one in enumerate(of)]
            for of, _ in self.drafters
        ]


@final
@dataclass
class StepTimes:
    """The times of a pair with its strategies, by batch size; sizes: of the batches to measure."""

    models: ModelPair
    parts: Strategies
    graphs: bool
    sizes: int
    known: dict[int, Seconds] = field(default_factory=dict)

    def of(self, engine: Engine) -> Seconds:
        """The times of steps of all rows of the engine.

        They are measured with the engine's graphs; on storage of their own without graphs, and for
        a batch-wide drafter, which would keep something of the measured steps. They are not kept on
        disk if other processes held the cores meanwhile.
        """
        batch = len(engine.sequences.lens)
        if batch not in self.known:
            setting, trim = self.setting(batch), self.parts.trim
            reads_cost = trim is not None and trim.reads_cost
            name = hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:16]
            file = folder() / f"step-times-{name}.json"
            try:
                kept = json.loads(file.read_text(encoding="utf-8"))
                times = [(kept["seconds"], kept["catch_up"]), *kept.get("others", ())]
                token = kept["token"] if reads_cost else 0.0
            except (OSError, ValueError, KeyError):
                if not (self.graphs and self.parts.drafter.batch_invariant):
                    engine = self.scratch(batch, Zeros.in_place_of(self.parts.drafter))
                began, worked = time.perf_counter(), time.thread_time()
                each = range(len(engine.step.drafter.choices))
                times = [(self.measured(engine, i), self.caught_up(engine, i)) for i in each]
                token = self.token(engine) if reads_cost else 0.0
                share = (time.thread_time() - worked) / (time.perf_counter() - began)
                found: dict[str, Any] = {"seconds": times[0][0], "catch_up": times[0][1]}
                found |= {"others": times[1:]} if times[1:] else {}
                found |= {"token": token} if reads_cost else {}
                if self.models.device.type == "cpu" and share < ALONE:
                    warnings.warn(BUSY, RuntimeWarning, stacklevel=2)
                else:
                    with contextlib.suppress(OSError):  # a folder that cannot be written
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_text(json.dumps(setting | found), encoding="utf-8")
            (own, fed), *others = times
            scaled = ((tuple(own[0] * (one / of[0]) for one in of), each) for of, each in others)
            self.known[batch] = Seconds(((tuple(own), fed), *scaled), token)
        return self.known[batch]

    def setting(self, batch: int) -> dict[str, object]:
        """What the times depend on."""
        device, models = self.models.device, self.models.modules
        gpu = device.type == "cuda"
        parts = [
            one for name, one in vars(self.parts).items() if name != "policy" and one is not None
        ]
        return {
            "device": torch.cuda.get_device_name(device) if gpu else cpu_name(),
            "threads": None if gpu else torch.get_num_threads(),
            "torch": torch.__version__,
            "models": [
                [type(one).__name__, str(one.shape), sum(t.nbytes for t in one.parameters())]
                for one in models
            ],
            "strategies": [f"{part.__module__}.{called(part)}" for part in parts],
            "sources": [*digests([*parts, *map(type, models)]).values()],
            "graphs": self.graphs,
            "lengths": captured_lengths(self.parts.policy),
            "batch": batch,
        }

    def scratch(self, batch: int, drafter: DraftMethod) -> Engine:
        """An engine on storage of its own, with room for a few rounds."""
        parts = replace(self.parts, drafter=drafter)
        longest = PROMPT + 2 * sum(k + 1 for k in captured_lengths(self.parts.policy))
        limits = np.full(batch, min(longest, self.models.context))
        budget = CacheBudget.of(limits)
        return Storage(self.models, parts, budget, 1, self.graphs).engine_for(budget, 1)

    def measured(self, engine: Engine, drafter: int = 0) -> list[float]:
        """The time of each length of a drafter, as a multiple of that of no drafts in the same
        round, since the speed of a machine changes: medians of the rounds, of the least time in
        each. Lengths without one lie on the lines between their neighbours.
        """
        lengths = captured_lengths(self.parts.policy)
        longer = [k for k in FIRST if k in lengths] or [lengths[-1]]
        if engine.step.overlaps:  # the others too, where steps are quick
            longer = [*dict.fromkeys((*longer, *lengths[1:]))]
        order = (0,) * SETTLED + tuple(longer)
        taken = list[tuple[int, float]]()
        began = None
        for k, seconds in self.steps(engine, order, drafter):
            began = began or time.perf_counter()  # after captures and the first compilations
            taken.append((k, seconds))
            over = time.perf_counter() - began > MOST_SECONDS / self.sizes
            if over and len({k for k, _ in taken}) >= min(LEAST_TIMED, len(lengths)):
                break
        without, ratios = list[float](), dict[int, list[float]]()
        for k, steps in itertools.groupby(taken, lambda step: step[0]):
            block = [seconds for _, seconds in steps]
            if k:
                ratios.setdefault(k, []).append(float(np.min(block)) / without[-1])
            else:
                without.append(float(np.min(block[-COUNTED:])))
        none = float(np.median(without))
        found = {0: none} | {k: none * float(np.median(of)) for k, of in ratios.items()}
        known = sorted(found)
        seconds = np.interp(np.arange(lengths[-1] + 1), known, [found[k] for k in known])
        if 0 < known[-1] < lengths[-1]:  # beyond the last: the line of the first and the last
            slope = (found[known[-1]] - found[known[0]]) / (known[-1] - known[0])
            beyond = np.arange(known[-1] + 1, lengths[-1] + 1)
            seconds[beyond] = found[known[-1]] + slope * (beyond - known[-1])
        # a step takes no longer than one of a longer draft
        least = np.minimum.accumulate(seconds[::-1])[::-1]
        return ((least + np.maximum.accumulate(seconds)) / 2).tolist()

    @torch.inference_mode()
    def caught_up(self, engine: Engine, drafter: int = 0) -> float:
        """The least seconds of some catch-ups of the rows as `measured` leaves them; 0 of one
        that is fed nothing.
        """
        if not engine.step.drafter.choices[drafter].fills:
            return 0.0
        rows, tokens = engine.sequences, [0] * (CAUGHT_UP + 1)
        last = min(CAUGHT_UP, rows.capacity)
        parts = [Part(row, tokens, 0, last) for row in range(len(rows.lens))]
        feed = partial(engine.step.catch_up, rows, parts, drafter)
        return min(timed(feed, rows.tokens.device) for _ in range(CATCH_UPS))

    def token(self, engine: Engine) -> float:
        """The time of one more verified token of each row: the least time of steps in which all
        rows draft, over that of steps in which some do. A graph's passes of the drafter are the
        same for half of the rows; without graphs none draft, and drafts take no time.
        """
        batch, lengths = len(engine.sequences.lens), captured_lengths(self.parts.policy)
        some = max(1, batch // 2)
        if not engine.step.overlaps:
            engine, some = self.scratch(batch, Zeros()), 0
        k = next((k for k in FIRST if k in lengths), lengths[-1])
        all_rows, part = (
            min(seconds for _, seconds in self.steps(engine, (k,), drafting=rows))
            for rows in (batch, some)
        )
        return max(0.0, all_rows - part) * batch / max(1, (batch - some) * k)

    def steps(
        self, engine: Engine, order: tuple[int, ...], drafter: int = 0, drafting: int | None = None
    ) -> Iterator[tuple[int, float]]:
        """Draft length and seconds of steps of each length, in `ROUNDS` rounds, where the first
        `drafting` draft, or all.

        The first step of a length does not count: it compiles kernels, records passes, and feeds
        the draft model what it lacks. On a GPU the last does not either: the host launches the
        graph of the next length before it has the report. On a CPU the first two warm its caches.
        """
        each, counted = (3, range(1, 2)) if engine.step.overlaps else (5, range(2, 5))
        total = each * len(order) * ROUNDS
        rows, capacity = engine.sequences, engine.sequences.capacity
        vocabulary, length = self.models.target.shape.vocab_size, min(PROMPT, 1 + capacity // 4)
        prompt, done = [i % vocabulary for i in range(length)], 0
        requests = [Request(prompt, capacity, key) for key in range(len(rows.lens))]
        while done < total:
            start = done
            policy = InTurn(order, self.parts.policy.max_length, each, start, drafter, drafting)
            run = EngineRun(requests, rows, engine.step, policy)
            for _ in run:
                for record in run.trace.steps[done - start :]:
                    if done % each in counted:
                        yield record.k, record.seconds + record.host_seconds
                    done += 1
                if done >= total:
                    for request in range(len(requests)):
                        run.finish(request)
