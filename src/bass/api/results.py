"""What a generation returns: completions, statistics, trace."""

import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bass.engine.cost import Peaks, total
from bass.engine.requests import StepRecord, Trace
from bass.printable import printable

MOST_SHOWN, LONGEST_SHOWN = 100, 2000  # completions and their characters in a notebook


@dataclass(frozen=True)
class Completion:
    """One sample of one prompt.

    `prompt_index`: the prompt's place in the call. `sample_index`: which sample of the prompt it
    is, from 0; where a call with `num_return_sequences=n` repeats a prompt (the same token ids),
    its occurrence j has the samples j*n to j*n + n-1.
    `logprobs` are the target's own (natural logarithm, before any warp), one per token of
    `token_ids`; -9999 for one that the target excludes (its logit is -inf).
    `finish_reason` is `eos`, `stop` (a stop string or stop token), `length`, `time` (the time
    budget ran out first) or `interrupted` (the generation was closed or interrupted first). `text`
    is what the tokenizer decodes `token_ids` to, up to a stop string; `token_ids` end with the
    token that completed it: see `bass.text.Transcript`.
    `seconds`: from the end of its prefill.
    """

    prompt_index: int
    sample_index: int
    text: str | None
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    seconds: float

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token; 0 for an empty completion."""
        return float(np.mean(self.logprobs)) if self.logprobs else 0.0

    @property
    def finished(self) -> bool:
        """Whether it came to its own end."""
        return self.finish_reason in ("eos", "stop", "length")


@dataclass(frozen=True)
class StreamEvent:
    """Tokens that one step committed for one sample; `finish_reason` is set on its last event."""

    prompt_index: int
    sample_index: int
    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None


@dataclass(frozen=True)
class Counts:
    """The accounts of some steps.

    Row-steps are active rows summed over steps: the target calls of all sequences.
    """

    steps: int
    row_steps: int
    drafted: int
    accepted: int
    emitted: int

    @property
    def tau(self) -> float | None:
        """Emitted tokens per target call of a row, bonus included; None where there was no call."""
        return self.emitted / self.row_steps if self.row_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Stats(Counts):
    """A run in numbers, named as in docs/metrics.md. One that does not apply, as an acceptance rate
    where nothing was drafted, is None.

    `lossless`, `batch_invariant`: what the verifier and the drafter say of themselves; without the
    second, the tokens of a row depend on its batch (so they do with a batch-wide policy).
    `first`, `last`, `all`: see `first_last_all`. `acceptance_by_position`, `reached_by_position`:
    see the function of that name.
    """

    tokens: int  # emitted and kept: those after a stop string are cut
    acceptance_by_position: list[float | None]
    reached_by_position: list[int]
    first: float | None
    last: float | None
    all: float | None
    seconds: float  # until the last token, without those of captures
    prefill_seconds: float | None
    capture_seconds: float  # in which the run waited for graphs to be captured: see `LLM.warm_up`
    bound_seconds: float | None
    mfu: float | None
    mfu_kept: float | None
    mbu: float | None
    lossless: bool
    batch_invariant: bool

    @property
    def tokens_per_second(self) -> float | None:
        """Kept tokens of all sequences over the whole time, prefill included;

        None where no time was spent.
        """
        return self.tokens / self.seconds if self.seconds else None

    def as_dict(self) -> dict[str, Any]:
        """Fields and derived figures, for JSON."""
        return vars(self) | {
            "tau": self.tau,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True)
class Result:
    """Completions in the order of the prompts and, within one, of the samples."""

    completions: list[Completion]
    stats: Stats
    trace: list[StepRecord] = field(repr=False)

    def by_prompt(self) -> list[list[Completion]]:
        """The completions of each prompt, in the order of the call."""
        found: dict[int, list[Completion]] = {}
        for one in self.completions:
            found.setdefault(one.prompt_index, []).append(one)
        return [found[index] for index in sorted(found)]

    def _repr_html_(self) -> str:
        """A table of the completions, for a notebook."""
        heads = ("prompt", "sample", "text", "tokens", "mean logprob", "ended by")
        rows = [
            (
                one.prompt_index,
                one.sample_index,
                f"<pre>{_shown(one)}</pre>",
                len(one.token_ids),
                f"{one.mean_logprob:.3f}",
                one.finish_reason,
            )
            for one in self.completions[:MOST_SHOWN]
        ]
        table = "".join(_row("td", row) for row in rows)
        left = len(self.completions) - len(rows)
        figures = {
            "tau": self.stats.tau,
            "acceptance rate": self.stats.acceptance_rate,
            "tokens per second": self.stats.tokens_per_second,
        }
        said = [f"{name} {value:.3g}" for name, value in figures.items() if value is not None]
        said += [f"{left} more completions"] if left else []
        said += [] if self.stats.lossless else ["NOT LOSSLESS"]
        return f"<table>{_row('th', heads)}{table}</table><p>{', '.join(said)}</p>"


def _row(cell: str, values: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{cell}>{value}</{cell}>' for value in values)}</tr>"


def _shown(completion: Completion) -> str:
    """Text, or token ids where there is none, that is safe in a page."""
    text = str(completion.token_ids) if completion.text is None else completion.text
    cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return html.escape(printable(cut, "\n\t"))


def count(steps: list[StepRecord]) -> Counts:
    """The accounts of these steps."""
    return Counts(
        steps=len(steps),
        row_steps=sum(int(s.active.sum()) for s in steps),
        drafted=sum(int(s.drafted.sum()) for s in steps),
        accepted=sum(int(s.accepted.sum()) for s in steps),
        emitted=sum(int(s.emitted.sum()) for s in steps),
    )


def judged_lengths(step: StepRecord) -> np.ndarray:
    """How many tokens of each row's draft were judged, int [B]: all, unless the sequence ended with
    a drafted token.

    Then nothing but accepted tokens was emitted, and of what had been drafted beyond its end nobody
    knows.
    """
    return np.where(step.active & (step.emitted == step.accepted), step.accepted, step.drafted)


def acceptance_by_position(steps: list[StepRecord]) -> tuple[list[float | None], list[int]]:
    """Conditional acceptance rate at each draft position, and its denominators.

    Entry i: of the drafts whose position i+1 was judged and that had all before it accepted
    (`reached[i]` of them), the share whose token there was accepted; None where no draft reached
    it.
    """
    if not steps:
        return [], []
    drafted = np.concatenate([s.drafted for s in steps])
    judged = np.concatenate([judged_lengths(s) for s in steps])
    accepted = np.concatenate([s.accepted for s in steps])
    reached = [
        int(((judged > i) & (accepted >= i)).sum()) for i in range(int(drafted.max(initial=0)))
    ]
    kept = [int((accepted > i).sum()) for i in range(len(reached))]
    return [a / r if r else None for a, r in zip(kept, reached, strict=True)], reached


def first_last_all(
    sequences: Iterable[tuple[float, float, int]],
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Seconds per token of the first and the last sequence to finish, and the mean over sequences:
    the BASS paper's latencies.

    A sequence is (end of its prefill since the run began, seconds from then to its last token,
    tokens). Those without tokens are left out; None where none is left.
    """
    ended = sorted(
        (prefilled + seconds, seconds / tokens)
        for prefilled, seconds, tokens in sequences
        if tokens
    )
    rates = [rate for _, rate in ended]
    if not rates:
        return None, None, None
    return rates[0], rates[-1], float(np.mean(rates))


@dataclass(frozen=True)
class Utilization:
    """How much of the device the steps used. `bound_seconds`: the least time in which it can move
    the bytes they must move.

    MFU: FLOPs done over those that the time in steps allows; `mfu_kept`: of them, for tokens that
    were kept. MBU: the bound over the time in steps. Attention's FLOPs are left out. None where no
    time was spent in steps.
    """

    bound_seconds: float | None
    mfu: float | None
    mfu_kept: float | None
    mbu: float | None


def utilization(steps: list[StepRecord], peaks: Peaks) -> Utilization:
    """Of these steps, on a device with these ceilings."""
    stepping = sum(s.seconds for s in steps)
    if not stepping:
        return Utilization(None, None, None, None)
    work = total(s.work for s in steps)
    bound = work.bytes / peaks.bandwidth
    return Utilization(
        bound,
        work.flops / peaks.flops / stepping,
        work.flops_kept / peaks.flops / stepping,
        bound / stepping,
    )


def summarize(
    trace: Trace,
    completions: list[Completion],
    peaks: Peaks,
    seconds: float,
    lossless: bool,
    batch_invariant: bool = True,
) -> Stats:
    """The statistics of a run."""
    rates, reached = acceptance_by_position(trace.steps)
    first, last, mean = first_last_all(
        (trace.prefilled.get(i, 0.0), c.seconds, len(c.token_ids))
        for i, c in enumerate(completions)
    )
    return Stats(
        **vars(count(trace.steps)),
        tokens=sum(len(c.token_ids) for c in completions),
        acceptance_by_position=rates,
        reached_by_position=reached,
        first=first,
        last=last,
        all=mean,
        seconds=seconds,
        prefill_seconds=min(trace.prefilled.values(), default=None),
        capture_seconds=trace.capture_seconds,
        **vars(utilization(trace.steps, peaks)),
        lossless=lossless,
        batch_invariant=batch_invariant,
    )
