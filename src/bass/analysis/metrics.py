"""What is measured, and all metrics: `METRICS`, a number each, and `PROFILES`, a list each.

A metric is a function of a `Measurement`, declared by `metric`; its docstring is its definition,
and docs/metrics.md has it in a line. `result.stats`, `bass bench`, tables, reports and run folders
call the same functions. A metric that does not apply is None, and never 0. A *row step* is one
active row of one step.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, final

import numpy as np
import pandas as pd

from bass.analysis.statistics import Comparison, Interval, compare, interval
from bass.errors import imported, unknown_name
from bass.process import find_object

Better = Literal["higher", "lower", "neither"]
Over = Literal["repeats", "prompts"]
Value = float | None
Function = TypeVar("Function", bound=Callable[..., Value])

CALL = ["repeat", "call"]  # the columns that name a call
PER_ROW = ("requests", "drafted", "accepted", "emitted")  # lists of a step, one entry per row

NOTHING = "–"  # where a metric does not apply
_UNITS = {  # to the unit of a table, and the factor
    "seconds": ("ms", 1e3), "seconds per token": ("ms per token", 1e3), "share": ("%", 100.0),
    "tokens per second": ("tokens/s", 1.0), "requests per second": ("requests/s", 1.0),
}  # fmt: skip


@final
@dataclass(frozen=True)
class Measurement:
    """What a metric reads: the steps and requests of one or more calls.

    facts: of the device and the run, as in a cell's `summary.json`: `bandwidth` (bytes/s), `flops`
    (per second), `peak_memory_bytes`, `ttft_limit`, `tpot_limit`, `e2e_limit` (seconds); a function
    is called when its fact is read. Metrics that need what is missing do not apply.
    """

    steps: pd.DataFrame
    requests: pd.DataFrame
    facts: Mapping[str, Any] = field(default_factory=dict)
    part: pd.DataFrame | None = field(default=None, repr=False)  # of the rows of a larger one
    _parts: dict[str, dict] = field(default_factory=dict, init=False, repr=False)  # by column

    @functools.cached_property
    def rows(self) -> pd.DataFrame:
        """One row per row step: an active row of a step, with its request.

        Columns: repeat, call, step, at, k, request, drafted, judged, accepted, emitted, and prompt,
        category and turn of the request. judged: the verified tokens of the draft; a request that
        ends at an accepted token leaves the later ones of its draft unjudged.
        """
        if self.part is not None:
            return self.part
        columns = [*CALL, "step", "at", "k", *PER_ROW]
        flat = self.steps[columns].rename(columns={"requests": "request"})
        flat = flat.explode(["request", *PER_ROW[1:]], ignore_index=True)
        flat = flat.astype(dict.fromkeys(["request", *PER_ROW[1:]], np.int64))
        flat = flat[flat["request"] >= 0]
        flat["judged"] = flat["accepted"].where(
            flat["emitted"] == flat["accepted"], flat["drafted"]
        )
        of_request = self.requests[[*CALL, "request", "prompt", "category", "turn"]]
        return flat.merge(of_request, on=[*CALL, "request"], how="left")

    @functools.cached_property
    def counts(self) -> SimpleNamespace:
        """The number of `row_steps`, and the sums over them of `drafted`, `accepted` and `emitted`
        tokens, and of those `reached`: judged after nothing but accepted ones.
        """
        rows = self.rows
        reached = np.minimum(rows["judged"], rows["accepted"] + 1)
        sums = rows[["drafted", "accepted", "emitted"]].assign(reached=reached).sum()
        return SimpleNamespace(row_steps=len(rows), **sums.to_dict())

    @functools.cached_property
    def call_seconds(self) -> pd.Series:
        """Of each call: seconds from its start to its last token, without captures and warm-up."""
        last = [self.requests.groupby(CALL)["ended"].max()]
        if len(self.steps):
            last.append(self.steps.groupby(CALL)["at"].max())
        return pd.concat(last).groupby(level=[0, 1]).max()

    @functools.cached_property
    def token_times(self) -> list[np.ndarray]:
        """Of each request, when each of its tokens was committed: seconds since its call began."""
        rows = self.rows
        groups = rows.groupby([*CALL, "request"]).indices
        at, emitted = rows["at"].to_numpy(), rows["emitted"].to_numpy()
        keys = zip(*(self.requests[name] for name in (*CALL, "request")), strict=True)
        none = np.zeros(0, dtype=np.int64)
        times = []
        for key, tokens in zip(keys, self.requests["token_ids"], strict=True):
            own = groups.get(key, none)
            times.append(np.repeat(at[own], emitted[own])[: len(tokens)])
        return times

    @functools.cached_property
    def rates(self) -> pd.Series:
        """Seconds per token, from the end of the prefill, of each sequence that has tokens.

        Index: repeat and call. In a call, the sequence that finished first is the first.
        """
        counts = self.requests["token_ids"].map(len).astype(float)
        frame = self.requests[[*CALL, "ended"]].assign(rate=self.requests["seconds"] / counts)
        ordered = frame[counts > 0].sort_values(["ended", "rate"], kind="stable")
        return ordered.set_index(CALL)["rate"]

    def fact(self, name: str) -> Any:
        """One of the facts; None without it."""
        found = self.facts.get(name)
        return found() if callable(found) else found

    def split(self, column: str) -> "dict[Any, Measurement]":
        """The part of each value of a column of the requests: repeat, call, prompt, category, turn.

        A part has the steps of the calls that have no requests of another value.
        """
        if column in self._parts:
            return self._parts[column]
        calls = self.requests.groupby(CALL)[column].agg(["min", "max"])
        single = calls.loc[calls["min"] == calls["max"], "min"]
        keys = pd.MultiIndex.from_frame(self.steps[CALL])
        steps = dict(list(self.steps.groupby(single.reindex(keys).to_numpy())))
        rows = dict(list(self.rows.groupby(column)))
        found = self._parts[column] = {}
        for value, requests in self.requests.groupby(column):
            own = steps.get(value, self.steps[:0]), requests, self.facts
            found[value] = Measurement(*own, rows.get(value, self.rows[:0]))
        return found

    def where(self, **columns: Any) -> "Measurement":
        """The part of these values of columns of the requests, such as `category="qa"`.

        Raises `OptionError` for a value that no request has.
        """
        found = self
        for column, value in columns.items():
            if value not in (parts := found.split(column)):
                raise unknown_name(column, str(value), map(str, parts))
            found = parts[value]
        return found

    @property
    def repeats(self) -> list[int]:
        return sorted(self.requests["repeat"].unique().tolist())

    @property
    def categories(self) -> list[str]:
        """The categories of the prompts, in the order of the prompts; without the empty one."""
        found = self.requests.sort_values("prompt", kind="stable")["category"].unique().tolist()
        return [name for name in found if name]


def repeated(calls: Sequence[Measurement]) -> Measurement:
    """Calls as the repeats of one measurement."""
    steps = pd.concat([one.steps.assign(repeat=i) for i, one in enumerate(calls)])
    requests = pd.concat([one.requests.assign(repeat=i) for i, one in enumerate(calls)])
    return Measurement(steps, requests, calls[0].facts)


def number(value: float | None, unit: str = "") -> str:
    """A value in three digits and in the unit of a table; a dash without one."""
    if value is None or math.isnan(value):
        return NOTHING
    value *= _UNITS.get(unit, (unit, 1.0))[1]
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if value else "0"


@final
@dataclass(frozen=True)
class Metric:
    """A number of a measurement; None where it does not apply. The fields are those of `metric`."""

    name: str
    function: Callable[..., Value]
    unit: str
    better: Better
    over: Over
    heading: str
    column: bool
    interval: bool
    least: float

    @property
    def doc(self) -> str:
        return " ".join((inspect.getdoc(self.function) or "").split())

    @property
    def compares(self) -> bool:
        """Whether it has a second argument, autoregressive decoding."""
        return len(inspect.signature(self.function).parameters) > 1

    def __call__(self, m: Measurement, plain: Measurement | None = None) -> Value:
        """Its value, a number of Python. plain: autoregressive decoding of the same requests at the
        same batch.
        """
        if self.compares and plain is None:
            return None
        value: Any = self.function(m, plain) if self.compares else self.function(m)
        return value.item() if isinstance(value, np.generic) else value

    def show(self, value: float | None) -> str:
        """A value as it is shown in a table."""
        return number(value, self.unit)


METRICS: dict[str, Metric] = {}


def metric(
    unit: str, better: Better, over: Over = "repeats", *, heading: str | None = None,
    column: bool = False, interval: bool = False, least: float = 0.0,
) -> Callable[[Function], Function]:  # fmt: skip
    """Declare a function as the metric of its name: of a measurement, or of one and of that of
    autoregressive decoding of the same requests, with which it is compared.

    unit: "share", "seconds" and some others are shown scaled. over: its independent values, see
    `independent`. heading: in tables. column: in those of no queue. interval: with its interval.
    least: the smallest value that it can have.
    """

    def declared(function: Function) -> Function:
        name = function.__name__.rstrip("_")
        title = heading or f"{name}, {_UNITS.get(unit, (unit, 1.0))[0]}"
        METRICS[name] = Metric(name, function, unit, better, over, title, column, interval, least)
        return function

    return declared


def find_metric(name: str) -> Metric:
    """The metric of a name, or of "package.module:function", which is imported.

    Raises `OptionError`.
    """
    module, colon, own = name.rpartition(":")
    if colon:
        imported(f"metric `{name}`", lambda: find_object(module, own))
    if own.rstrip("_") not in METRICS:
        raise unknown_name("metric", name, METRICS)
    return METRICS[own.rstrip("_")]


def _ratio(numerator: float, denominator: float) -> Value:
    return numerator / denominator if denominator else None


def _mean(values: Iterable[float]) -> Value:
    found = np.asarray(list(values), dtype=float)
    return float(found.mean()) if len(found) else None


# Acceptance


@metric("steps", "neither")
def steps(m: Measurement) -> Value:
    """Steps of the batch: the target runs once in each, for all rows."""
    return len(m.steps)


@metric("row steps", "neither")
def row_steps(m: Measurement) -> Value:
    """Row steps: active rows summed over steps."""
    return m.counts.row_steps


@metric("tokens", "neither")
def drafted(m: Measurement) -> Value:
    """Drafted tokens, those beyond the end of a sequence included."""
    return m.counts.drafted


@metric("tokens", "neither")
def accepted(m: Measurement) -> Value:
    """Drafted tokens that were committed, without bonus and correction."""
    return m.counts.accepted


@metric("tokens", "neither")
def emitted(m: Measurement) -> Value:
    """Committed tokens, those that a stop string cut off included."""
    return m.counts.emitted


@metric("tokens", "neither")
def tokens(m: Measurement) -> int:
    """Tokens of all sequences: committed ones, without those that a stop string cut off."""
    return int(m.requests["token_ids"].map(len).sum())


@metric(
    "tokens per row step", "higher", "prompts", heading="tau", column=True, interval=True, least=1.0
)
def tau(m: Measurement) -> Value:
    """Mean acceptance length: committed tokens / row steps, bonus and correction included.

    vLLM: mean acceptance length, which is 1 + accepted / drafts there, over row steps with a draft.
    SGLang: accept length. Spec-Bench: #Mean accepted tokens.
    """
    return _ratio(m.counts.emitted, m.counts.row_steps)


@metric("tokens per row step", "neither", "prompts")
def drafted_per_row_step(m: Measurement) -> Value:
    """Drafted tokens / row steps: the mean length of a draft, lengths of 0 included."""
    return _ratio(m.counts.drafted, m.counts.row_steps)


@metric("share", "higher", "prompts", heading="accepted, %", column=True)
def acceptance_rate(m: Measurement) -> Value:
    """Accepted / drafted tokens; it falls as drafts get longer. vLLM: draft acceptance rate."""
    return _ratio(m.counts.accepted, m.counts.drafted)


@metric("share", "higher", "prompts")
def token_acceptance_rate(m: Measurement) -> Value:
    """Of the drafted tokens that were judged after nothing but accepted ones, the share accepted.

    It does not depend on the length of drafts if every token is accepted with one probability.
    Leviathan et al. (2023): alpha.
    """
    return _ratio(m.counts.accepted, m.counts.reached)


@metric("share", "lower")
def padding_waste(m: Measurement) -> Value:
    """Share of the target's window positions, batch x (k + 1) a step, of idle rows or beyond a
    row's own draft.

    On a CPU, columns that no row uses are not computed.
    """
    total = float((m.steps["requests"].map(len) * (m.steps["k"] + 1)).sum())
    active = (sum(request >= 0 for request in row) for row in m.steps["requests"])
    used = sum(active) + sum(map(sum, m.steps["drafted"]))
    return 1 - used / total if total else None


@metric("share", "higher", heading="active rows, %")
def active_rows(m: Measurement) -> Value:
    """Share of a batch's rows that decode, the mean over steps.

    The others wait for a request, or for the prefill of theirs. A queue ends with rows that have no
    request left.
    """
    return _mean(float(np.mean(np.asarray(row) >= 0)) for row in m.steps["requests"])


# Time


@metric("seconds", "lower")
def seconds(m: Measurement) -> Value:
    """From the beginning of a call to its last token, summed over calls: with prefills, without
    captures of graphs and warm-up.
    """
    return float(m.call_seconds.sum())


@metric("seconds", "lower")
def prefill_seconds(m: Measurement) -> Value:
    """From the beginning of a call to the end of its first prefill, the mean over calls."""
    first_ends = m.requests.groupby(CALL)["prefill_seconds"].min().dropna()
    return _mean(first_ends)


@metric("seconds per token", "lower", column=True, interval=True)
def all_(m: Measurement) -> Value:
    """Seconds per token from the end of the prefill, the mean over sequences. BASS paper: all."""
    return _mean(m.rates)


@metric("seconds per token", "lower", column=True)
def first(m: Measurement) -> Value:
    """Seconds per token, from its prefill, of a call's first sequence to end. BASS paper: first."""
    return _mean(m.rates.groupby(level=[0, 1]).first())


@metric("seconds per token", "lower", column=True)
def last(m: Measurement) -> Value:
    """Seconds per token, from its prefill, of a call's last finished sequence. BASS paper: last."""
    return _mean(m.rates.groupby(level=[0, 1]).last())


@metric("seconds", "lower")
def ttft(m: Measurement) -> Value:
    """Mean over requests. Time to first token from the arrival of the request, in most calls their
    beginning: a wait for a row is in it. vLLM: mean_ttft_ms.
    """
    each = zip(m.token_times, m.requests["arrival_seconds"], strict=True)
    return _mean(times[0] - arrival for times, arrival in each if len(times))


@metric("seconds per token", "lower")
def tpot(m: Measurement) -> Value:
    """Mean over requests of the time per output token after the first. vLLM: mean_tpot_ms."""
    return _mean((t[-1] - t[0]) / (len(t) - 1) for t in m.token_times if len(t) > 1)


@metric("seconds", "lower")
def itl_p50(m: Measurement) -> Value:
    """Median time between two arrivals of tokens for one request, over all of them; the tokens of a
    step arrive together.

    vLLM: median_itl_ms, of chunks.
    """
    return _itl(m, 50)


@metric("seconds", "lower")
def itl_p99(m: Measurement) -> Value:
    """As itl_p50, the 99th percentile. vLLM: p99_itl_ms, of chunks."""
    return _itl(m, 99)


def _itl(m: Measurement, percentile: float) -> Value:
    gaps = np.concatenate([np.zeros(0), *(np.diff(np.unique(t)) for t in m.token_times)])
    return float(np.percentile(gaps, percentile)) if len(gaps) else None


@metric("tokens per second", "higher", heading="tokens/s", column=True, interval=True)
def tokens_per_second(m: Measurement) -> Value:
    """Tokens of all sequences over the whole time, prefill included. vLLM: output_throughput."""
    return _ratio(tokens(m), float(m.call_seconds.sum()))


@metric("tokens per second", "higher")
def tokens_per_second_per_user(m: Measurement) -> Value:
    """Mean over requests. A request's tokens over its seconds from the end of its prefill.

    Spec-Bench: tokens per second, with the prefill in the time.
    """
    timed = m.requests[m.requests["seconds"] > 0]
    rates = timed["token_ids"].map(len) / timed["seconds"]
    return _mean(rates[rates > 0])


@metric("requests per second", "higher")
def goodput(m: Measurement) -> Value:
    """Requests per second that came to their own end within every latency limit that was set (ttft,
    tpot, e2e).

    A request of one token has a tpot of 0. It applies where a limit was set. vLLM: request_goodput.
    """
    names = ("ttft_limit", "tpot_limit", "e2e_limit")
    limits = np.array([m.fact(name) or np.inf for name in names])
    total = float(m.call_seconds.sum())
    if not total or np.isinf(limits).all():
        return None
    good, ends = 0, m.requests[["arrival_seconds", "ended", "finished"]].to_numpy()
    for times, (arrival, end, finished) in zip(m.token_times, ends, strict=True):
        if finished and len(times):
            gap = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
            good += bool(all(limits >= (times[0] - arrival, gap, end - arrival)))
    return good / total


def _stepping(m: Measurement) -> float:
    """Seconds in steps on the device."""
    return float(m.steps["seconds"].sum())


@metric("share", "neither", heading="trimmed, %", column=True)
def trimmed_share(m: Measurement) -> Value:
    """Drafted tokens that a trim took back before verification, over all drafted ones."""
    if "trimmed" not in m.steps or not (trimmed := m.steps["trimmed"].dropna()).size:
        return None
    count = float(sum(map(sum, trimmed)))
    return _ratio(count, count + float(m.steps.loc[trimmed.index, "drafted"].map(sum).sum()))


@metric("share", "lower")
def host_share(m: Measurement) -> Value:
    """The host's time before steps, for which the device waits, over that and the time in steps."""
    host = float(m.steps["host_seconds"].sum())
    return _ratio(host, host + _stepping(m))


# Use of the device


@metric("seconds", "lower")
def bound_seconds(m: Measurement) -> Value:
    """The least time in which the device can move the bytes that the steps must move."""
    bandwidth = m.fact("bandwidth")
    if not bandwidth or not len(m.steps):
        return None
    return float(m.steps["bytes"].sum()) / bandwidth


@metric("share", "higher", heading="MBU, %", column=True)
def mbu(m: Measurement) -> Value:
    """Model bandwidth utilization: bound_seconds over the time in steps."""
    bound = bound_seconds(m)
    return None if bound is None else _ratio(bound, _stepping(m))


@metric("share", "higher", heading="MFU, %", column=True)
def mfu(m: Measurement) -> Value:
    """Model FLOPs utilization: FLOPs for tokens of active rows over those that the time in steps
    allows; attention's are left out.

    BASS paper: GPU utilization.
    """
    peak = m.fact("flops")
    return _ratio(float(m.steps["flops"].sum()), peak * _stepping(m)) if peak else None


@metric("bytes", "lower")
def peak_memory_bytes(m: Measurement) -> Value:
    """The most memory of the device that was in use at a time, weights included."""
    peak = m.fact("peak_memory_bytes")
    return None if peak is None else float(peak)


# Compared with autoregressive decoding of the same requests


@metric("ratio", "lower", least=-math.inf)
def draft_cost_ratio(m: Measurement, plain: Measurement) -> Value:
    """c: what a drafted position adds to a step, over the time of an autoregressive step.

    (time in steps - steps x p) / (p x the sum of k over steps), p being the mean time of a step of
    autoregressive decoding. The wider window of the target and the verification are in it, the
    host's work is not. Leviathan et al. (2023): c, of the draft model's pass alone.
    """
    if not len(plain.steps):
        return None
    p = _stepping(plain) / len(plain.steps)
    return _ratio(_stepping(m) - len(m.steps) * p, p * float(m.steps["k"].sum()))


@metric("ratio", "higher")
def predicted_speedup(m: Measurement, plain: Measurement) -> Value:
    """(1 - a^(k+1)) / ((1 - a) (k c + 1)), with token_acceptance_rate as a and draft_cost_ratio as
    c.

    Where lengths vary: the sum of the numerators, each with its row's own length, over that of
    k c + 1, both over all row steps. Leviathan et al. (2023), theorem 3.8.
    """
    a, c = token_acceptance_rate(m), draft_cost_ratio(m, plain)
    if a is None or c is None:
        return None
    cost = float((m.rows["k"] * c + 1).sum())
    lengths = m.rows["drafted"].value_counts()
    expected = sum(
        count * sum(a**i for i in range(int(length) + 1)) for length, count in lengths.items()
    )
    return expected / cost if cost > 0 else None


@metric("share", "higher", "prompts")
def exact_match_rate(m: Measurement, plain: Measurement) -> Value:
    """Share of the requests whose tokens are those of autoregressive decoding, of those that both
    decoded.

    A request that the time budget cut is compared as far as it goes. It describes greedy decoding,
    and a coupled verifier; other verifiers draw other tokens from the same distribution.
    """
    return _mean(float(at is None) for at in _divergences(m, plain))


@metric("tokens", "higher", "prompts")
def first_divergence(m: Measurement, plain: Measurement) -> Value:
    """Of the requests that differ from autoregressive decoding, the median number of tokens before
    the first one that differs.

    It applies where one differs. Rounding decides near ties, so that even greedy decoding may part
    from autoregressive decoding in low precision.
    """
    parted = [at for at in _divergences(m, plain) if at is not None]
    return float(np.median(parted)) if parted else None


def _divergences(m: Measurement, plain: Measurement) -> list[int | None]:
    """Of each request that both decoded: the index of the first other token, None without one."""
    columns = [*CALL, "request", "token_ids", "finished"]
    both = m.requests[columns].merge(plain.requests[columns], on=[*CALL, "request"])
    found = []
    for row in both.itertuples(index=False):
        own, other = list(row.token_ids_x), list(row.token_ids_y)
        shared = min(len(own), len(other))
        at = next((i for i in range(shared) if own[i] != other[i]), None)
        if at is None and len(own) != len(other):
            at = shared if (row.finished_x if len(own) < len(other) else row.finished_y) else None
        found.append(at)
    return found


SPEEDUPS = {"speedup_all": "all", "speedup": "tokens_per_second"}  # column to metric


def measure(
    m: Measurement, names: Iterable[str] | None = None, plain: Measurement | None = None
) -> dict[str, float]:
    """The value of each metric (of these names) that applies to the measurement."""
    values = {name: METRICS[name](m, plain) for name in (METRICS if names is None else names)}
    return {name: float(value) for name, value in values.items() if value is not None}


def independent(m: Measurement, name: str, plain: Measurement | None = None) -> pd.Series:
    """The independent values of a metric, whose mean is the value of a cell.

    Times, and what depends on one, have a value per repeat: a repeat is one run of all requests.
    Acceptance has a value per prompt, over all its samples, turns and repeats, since samples of one
    prompt are correlated, and repeats of greedy decoding are copies.
    """
    metric = find_metric(name)
    column = "prompt" if metric.over == "prompts" else "repeat"
    others = {} if plain is None else plain.split(column)
    values = {unit: metric(part, others.get(unit)) for unit, part in m.split(column).items()}
    return pd.Series(values, dtype=float, name=metric.name).dropna()


def mean(values: pd.Series) -> Interval:
    """The mean of independent values, with the part of its interval that the metric can have."""
    metric, found = METRICS[str(values.name)], interval(values.to_numpy())
    if found.low is None or found.high is None:
        return found
    most = 1.0 if metric.unit == "share" and found.mean <= 1 else math.inf
    low, high = max(found.low, metric.least), min(found.high, most)
    return replace(found, low=low, high=high)


def paired(a: pd.Series, b: pd.Series) -> Comparison:
    """The ratio of two means over the independent values that both have."""
    both = a.index.intersection(b.index)
    return compare(a[both].to_numpy(), b[both].to_numpy())


def speedup(m: Measurement, plain: Measurement | None, name: str) -> Comparison | None:
    """How many times as good as autoregressive decoding it is, by a rate or by a latency; None
    without the latter.
    """
    if plain is None:
        return None
    own, other = independent(m, name), independent(plain, name)
    return paired(other, own) if METRICS[name].better == "lower" else paired(own, other)


# Profiles: a number per draft position or length


def by_position(rows: pd.DataFrame) -> pd.DataFrame:
    """Row i is about position i+1 of the drafts of `rows`, see `Measurement.rows`.

    reached_by_position: the drafts whose position was judged and that had all before it accepted.
    acceptance_by_position: the share of them accepted there. NeMo-Skills: conditional acceptance
    rate. judged_by_position: the drafts that have the position, not beyond the end of the text.
    unconditional_acceptance_by_position: the share of them accepted there. vLLM: per-position
    acceptance rate, which it counts over all drafts, long enough or not. accepted: those of both.
    """
    judged, accepted = rows["judged"].to_numpy(), rows["accepted"].to_numpy()
    at = np.arange(_longest(rows))[:, None]
    counts = {
        "accepted": accepted > at,
        "reached_by_position": (judged > at) & (accepted >= at),
        "judged_by_position": judged > at,
    }
    frame = pd.DataFrame({name: found.sum(axis=1) for name, found in counts.items()}, dtype=float)
    frame["acceptance_by_position"] = frame["accepted"] / frame["reached_by_position"]
    return frame.assign(
        unconditional_acceptance_by_position=frame["accepted"] / frame["judged_by_position"]
    )


def by_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Row n is about n tokens, of the row steps in `rows`.

    drafted_histogram, accepted_histogram: those that drafted, accepted n tokens. vLLM has the
    second per request: accepted-draft-length distribution. accepted_by_length: the mean number of
    accepted tokens of those that drafted n.
    """
    sizes, longest = ("drafted", "accepted"), _longest(rows)
    counts = {f"{of}_histogram": np.bincount(rows[of], minlength=longest + 1) for of in sizes}
    means = rows.groupby("drafted")["accepted"].mean()
    return pd.DataFrame(counts, dtype=float).assign(accepted_by_length=means)


def _longest(rows: pd.DataFrame) -> int:
    return int(rows["drafted"].max()) if len(rows) else 0


PROFILES = {
    **dict.fromkeys(("acceptance_by_position", "reached_by_position"), by_position),
    **dict.fromkeys(("unconditional_acceptance_by_position", "judged_by_position"), by_position),
    **dict.fromkeys(("drafted_histogram", "accepted_histogram", "accepted_by_length"), by_length),
}


def profile(m: Measurement, name: str) -> list[Value]:
    """A column of `by_position` or `by_length`; None where it does not apply."""
    return [None if math.isnan(value) else value for value in PROFILES[name](m.rows)[name]]
