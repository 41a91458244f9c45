"""`bass bench`: latency and throughput of a pair by method and batch, next to the bound by bytes.

The bound is the metric `bound_seconds`, of the steps that ran. A method is autoregressive decoding
(`plain`), a draft length (`k=4`) or a policy. The methods of a batch size take turns, so that a
drift of the machine meets all of them. Every row decodes the same number of tokens. Figures are
medians of the calls.
"""

import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, final

import numpy as np
import pandas as pd
import torch

from bass.analysis.metrics import SPEEDUPS, Measurement, measure, repeated, speedup
from bass.api.generation import Generation
from bass.api.llm import LLM, serve
from bass.api.loading import ModelCache, Models
from bass.api.options import DEFAULT_POLICY, LoadOptions, RequestOptions
from bass.api.plan import LoadPlan
from bass.api.queue import poisson
from bass.api.requests import check_context, prompt_ids
from bass.engine import cost
from bass.engine.parts import parts_at
from bass.errors import OptionError
from bass.experiments.grid import label_of
from bass.experiments.prompts import is_text, plain_turns, read_prompts, rendered
from bass.experiments.provenance import device_name, here
from bass.experiments.settings import LIMITS, PLAIN, BenchOptions, request_of
from bass.verifiers import Synthetic

# metrics of a call; the last one compares it with autoregressive decoding
FIGURES = (
    "all", "first", "last", "tokens_per_second", "tau", "acceptance_rate", "prefill_seconds",
    "host_share", "bound_seconds", "mbu", "mfu", "draft_cost_ratio",
)  # fmt: skip
# of a queue
QUEUE = (
    "tokens_per_second", "ttft", "tpot", "itl_p50", "itl_p99", "goodput", "tau", "acceptance_rate",
    "host_share", "active_rows",
)  # fmt: skip
Watch = Callable[[str, int, int], object]  # the batch and method, calls done, of how many


def methods_of(options: BenchOptions, load_options: LoadOptions) -> dict[str, LoadOptions]:
    """The options of `load` of each method, by its label. Raises the errors of `load` that need no
    checkpoint.
    """
    own = (load_options.policy, load_options.num_speculative_tokens)
    given = [*(options.methods or ()), *(one for one in own if one is not None)]
    if options.acceptance is not None:
        load_options = replace(load_options, verifier=Synthetic(options.acceptance))
    found = {}
    for name in given if options.methods else (PLAIN, *(given or [DEFAULT_POLICY])):
        k = 0 if name == PLAIN else int(name) if str(name).lstrip("-").isdecimal() else None
        label = PLAIN if k == 0 else str(label_of(name)) if k is None else f"k={k}"
        policy = name if k is None else None
        found[label] = replace(load_options, policy=policy, num_speculative_tokens=k)
        LoadPlan.of(found[label])
    return found


def expected_tau(rows: pd.DataFrame, acceptance: float | None) -> float:
    """The tau of these row steps if drafted token i is accepted with probability `acceptance`^i;
    NaN if that is not known.
    """
    shares = rows["drafted"].value_counts(normalize=True).items()
    a = math.nan if acceptance is None else acceptance
    return sum(share * sum(a**i for i in range(1, drafted + 1)) for drafted, share in shares) + 1


def prompts_for(models: Models, options: BenchOptions) -> tuple[dict[str, list[Any]], list[str]]:
    """The prompts by category, and notes on them: first turns of `prompts`, pieces of it if it is
    a text, or random tokens, of which there are as many as the largest batch has rows.

    Raises `OptionError` or `RequestError` if they fit neither the context nor the text.
    """
    vocabulary, tokenizer = models.target.shape.vocab_size, models.tokenizer
    if options.prompts is None or is_text(options.prompts):
        rows, length = options.queue or max(options.batches), options.prompt_length
        ids = np.random.default_rng(options.seed).integers(0, vocabulary, rows * length).tolist()
        if options.prompts is not None:
            [text] = read_prompts(options.prompts)
            ids = prompt_ids(tokenizer, vocabulary, rendered(tokenizer, text), 0)
        check_context(0, length, options.longest, models.context)
        if len(ids) < rows * length:
            raise OptionError(
                f"`{options.prompts}` has {len(ids):,} tokens, and {rows} prompts of {length} need "
                f"{rows * length:,}: give a longer text, or lower `--batches` or `--prompt-length`."
            )
        return {"": np.array(ids[: rows * length]).reshape(rows, length).tolist()}, []
    entries = read_prompts(options.prompts, options.data, options.categories)
    by: dict[str, list[Any]] = {}
    for i, entry in enumerate(entries):
        ids = prompt_ids(tokenizer, vocabulary, rendered(tokenizer, entry), i)
        if len(ids) + options.longest <= models.context:
            by.setdefault(entry.category, []).append(ids)
    if not by:
        raise OptionError(
            f"No prompt fits the context of {models.context} tokens next to "
            f"{options.longest} new ones: lower `--max-new-tokens`."
        )
    left, several = len(entries) - sum(map(len, by.values())), sum(one.turns > 1 for one in entries)
    used, as_text = min(options.batches) * options.repeats, plain_turns(entries, tokenizer)
    used = options.queue or used
    notes = {
        f"{left} of {len(entries)} prompts do not fit the context, and are left out.": left,
        f"Of {several} prompts with several turns only the first is answered.": several,
        "Conversations are plain text, for want of a chat template.": as_text,
        f"Only the first {used} prompts of a category are used at the smallest batch size: raise "
        "`--repeats` for more.": used < max(map(len, by.values())),
    }
    return by, [note for note, applies in notes.items() if applies]


@final
@dataclass
class Timing:
    """Times the calls of one method at one batch size.

    groups: the prompts of each call; after the last come the first again. request: the options of
    the warm-up; each call has the next seed. queue: the options of a queue, from which the prompts
    of a call arrive. calls: the measurement of each call.
    """

    llm: LLM
    groups: list[list[Any]]
    request: RequestOptions
    queue: BenchOptions | None = None
    calls: list[Measurement] = field(default_factory=list)
    last: Generation | None = field(default=None, repr=False)

    def warm_up(self) -> float:
        """Capture and compile in advance, and call once; returns the seconds."""
        began = time.perf_counter()
        if self.queue is None:
            self.llm.warm_up_for([(group, self.request) for group in self.groups])
        else:
            self.llm.warm_up()
        self.call(0)
        self.calls = []
        return time.perf_counter() - began

    def call(self, repeat: int) -> None:
        group = self.groups[len(self.calls) % len(self.groups)]
        self.last = None  # its storage is free for this call
        request, queue = request_of(self.request, repeat), self.queue
        if queue is None:
            self.last = self.llm.start(group, request)
        else:
            arrivals = poisson(group, queue.rate, request.seed, queue.lengths)
            self.last = self.llm.arriving(arrivals, vars(request))
        found = self.last.result().measurement
        limits = {name: getattr(queue, name, None) for name in LIMITS}
        self.calls.append(replace(found, facts={**found.facts, **limits}))

    @property
    def walls(self) -> list[float]:
        """Seconds of each call from the end of the last prefill to the last token."""
        return [
            float(one.call_seconds.iloc[0] - one.requests["prefill_seconds"].max())
            for one in self.calls
        ]

    @property
    def middle(self) -> int:
        """Tokens of a row in the middle of its new ones."""
        prompts: list[int] = [len(prompt) for group in self.groups for prompt in group]
        new: Any = self.request.max_new_tokens
        return round(statistics.fmean(prompts)) + new // 2

    @property
    def plain_bound(self) -> float:
        """Seconds in which a step without drafts can move its bytes, in the middle of the rows."""
        lens, models = np.full(self.llm.max_batch_size, self.middle), self.llm.models
        target, none = cost.pass_cost(models.target), np.zeros_like(lens)
        work = cost.work_of((), None, target, lens, none, none + 1, lens > 0)
        return work.bytes / cost.measure_peaks(models.device, models.dtype).bandwidth

    def parts(self) -> dict[str, float]:
        """`parts_at` the middle of the last call's rows, at its median draft length."""
        assert self.last is not None, "`call` comes first"
        k = int(self.calls[-1].steps["k"].median())
        return parts_at(self.last.run.step, self.last.run.sequences, k, self.middle)


def row_of(
    timing: Timing, acceptance: float | None = None, plain: Timing | None = None
) -> dict[str, Any]:
    """The figures of a method at a batch size, medians of its calls; metrics in their own units.

    wall: to the last token of the batch; `least`, `most`: of the calls. plain: autoregressive
    decoding of the same requests, for `speedup` (of tokens/s) and `speedup_all` (of the mean
    latency).
    """
    whole, calls = repeated(timing.calls), len(timing.calls)
    against = None if plain is None else repeated(plain.calls)
    others = {} if against is None else against.split("repeat")
    parts = whole.split("repeat").items()
    figures = [measure(one, FIGURES, others.get(repeat)) for repeat, one in parts]
    frame = pd.DataFrame(figures, columns=[*FIGURES], dtype=float)
    walls, steps = 1e3 * np.array(timing.walls), [len(one.steps) for one in timing.calls]
    frame["bound_ms_per_token"] = 1e3 * frame["bound_seconds"] / timing.request.max_new_tokens
    frame["wall_ms_per_token"] = walls / timing.request.max_new_tokens
    frame["wall_ms_per_step"] = walls / steps
    found: dict[str, Any] = frame.median().to_dict()
    wall, tau = frame["wall_ms_per_token"], expected_tau(whole.rows, acceptance)
    found |= {"share_of_bound": found["bound_ms_per_token"] / wall.median(), "calls": calls}
    found |= {"least": wall.min(), "most": wall.max()}
    found |= {"wall_ms_per_step_over_expected_tau": found["wall_ms_per_step"] / tau}
    longest = whole.rows.groupby(["repeat", "call", "step"])["drafted"].max()
    found |= {"mean_draft_length": float(longest.mean())}
    found |= {"step_ms": 1e3 * whole.steps["seconds"].median()}
    for name, metric in SPEEDUPS.items() if plain is not timing else ():
        if (ratio := speedup(whole, against, metric)) is not None:
            found |= {name: ratio.ratio, f"{name}_interval": ratio.text}
    return found


def queue_row_of(timing: Timing, plain: Timing | None = None) -> dict[str, Any]:
    """The figures of a method of a queue at a batch size, medians of its calls.

    step_ms: of steps that feed no prompt. share_of_steps: tokens/s, of those of such steps in which
    all rows decode, without anything between. plain: as of `row_of`, with the same arrivals.
    """
    whole = repeated(timing.calls)
    figures = [measure(one, QUEUE) for one in whole.split("repeat").values()]
    found: dict[str, Any] = pd.DataFrame(figures, columns=[*QUEUE], dtype=float).median().to_dict()
    alone = whole.steps.loc[whole.steps["fed"] == 0, "seconds"]
    step, rows = float(alone.median()), timing.llm.max_batch_size
    found |= {"step_ms": 1e3 * step, "calls": len(timing.calls)}
    found["share_of_steps"] = found["tokens_per_second"] * step / (rows * found["tau"])
    against = None if plain in (None, timing) else repeated(plain.calls)
    if against and (ratio := speedup(whole, against, "tokens_per_second")) is not None:
        found |= {"speedup": ratio.ratio, "speedup_interval": ratio.text}
    return found


@final
class Bench:
    """A benchmark whose options are checked and whose models are loaded. notes: what its figures do
    not say.

    Raises the errors of `bass.load`, and `OptionError`.
    """

    def __init__(self, options: BenchOptions, load_options: LoadOptions) -> None:
        self.options, self.cache = options, ModelCache()
        self.methods = methods_of(options, load_options)
        plans = [LoadPlan.of(own) for own in self.methods.values()]
        self.plan = next((plan for plan in plans if plan.draft is not None), plans[0])
        models = serve(self.plan, self.cache).models
        self.prompts, self.notes = prompts_for(models, options)
        self.lossless = all(one.parts.lossless_at(options.temperature) for one in plans)
        self.device = device_name(models.device)
        self.peaks = cost.measure_peaks(models.device, models.dtype)
        self.notes += self._remarks()
        self.about = {"machine": {"device": self.device} | vars(self.peaks), "seed": options.seed}
        self.about |= {"lossless": self.lossless, "notes": self.notes}
        self.about |= {"options": asdict(options), "load_options": vars(load_options)}

    def timing(self, method: str, batch: int, category: str) -> Timing:
        """A method at a batch size, whose engine is built by its first call."""
        own, options = self.prompts[category], self.options
        if options.queue is not None:
            group = [own[i % len(own)] for i in range(options.queue)]
            sizes = {"max_batch_size": batch, "max_model_len": max(map(len, own)) + options.longest}
            plan = LoadPlan.of(replace(self.methods[method], **sizes))
            return Timing(serve(plan, self.cache), [group], request_of(options), options)
        count = 1 if self.options.prompts is None else -(-len(own) // batch)
        groups = [[own[(i * batch + b) % len(own)] for b in range(batch)] for i in range(count)]
        plan = LoadPlan.of(replace(self.methods[method], max_batch_size=batch))
        used = groups[: self.options.repeats]
        return Timing(serve(plan, self.cache), used, request_of(self.options))

    def bounds(self) -> list[str]:
        """The peaks of the machine, and the bound of each batch size, before the measurement."""
        reads, products = (f"{rate / 1e9:,.1f}" for rate in vars(self.peaks).values())
        lines = [f"{self.device}: reads {reads} GB/s, products {products} GFLOP/s"]
        for batch, category in product(self.options.batches, self.prompts):
            bound = 1e3 * self.timing(next(iter(self.methods)), batch, category).plain_bound
            where = f"batch {batch}{category and f', {category}'}"
            lines.append(f"{where}: bound by bytes: {bound:.3g} ms of a step without drafts")
        return lines

    def run(self, watch: Watch = lambda name, done, total: None) -> pd.DataFrame:
        """One row per batch size, category and method, of `row_of`, the parts of a step and the
        warm-up.
        """
        settings = product(self.options.batches, self.prompts)
        return pd.DataFrame([row for one in settings for row in self._compared(*one, watch)])

    def to_json(self, frame: pd.DataFrame) -> str:
        """One line: versions, commit, device, options, and the rows of `run` as `settings`."""
        rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
        found = {"benchmark": "bass bench", **here(), **self.about, "settings": rows}
        return json.dumps(found, default=str)

    def _compared(self, batch: int, category: str, watch: Watch) -> list[dict[str, Any]]:
        """The rows of a batch size; the methods take turns."""
        gc.collect()  # frees the engines of the last batch size, with their graphs
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        timings = {name: self.timing(name, batch, category) for name in self.methods}
        seconds = {name: one.warm_up() for name, one in timings.items()}
        repeats, where = self.options.repeats, f"batch {batch}{category and f', {category}'}"
        for i, (name, one) in product(range(repeats), timings.items()):
            one.call(i + 1)
            watch(f"{where}, {name}", i + 1, repeats)
        plain, rows = timings.get(PLAIN), []
        for name, one in timings.items():
            row = {"method": name, "batch": batch, "category": category}
            if self.options.queue is not None:
                rows.append(row | queue_row_of(one, plain) | {"warm_up_s": seconds[name]})
                continue
            row |= row_of(one, self.options.acceptance, plain)
            row |= (parts := one.parts()) | {"warm_up_s": seconds[name]}
            host = row["wall_ms_per_step"] - sum(parts.values())
            rows.append(row | {"host_ms": host if host >= 0 else np.nan})
        return rows

    def _remarks(self) -> list[str]:
        options, parts, dummy = self.options, self.plan.parts, self.plan.target.dummy
        found = [] if self.lossless else [f"NOT LOSSLESS: {parts.caveat}."]
        if parts.trim is not None:
            found.append(f"Drafts are trimmed by `{parts.trim}`.")
        random = dummy or not options.prompts
        if random and options.acceptance is None and [*self.methods] != [PLAIN]:
            found.append(
                f"With random {'weights' if dummy else 'prompts'} acceptance and speed-up are not "
                "those of texts: give `--prompts`, or impose them with `--acceptance`."
            )
        return found
