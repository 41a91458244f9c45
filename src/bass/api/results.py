"""Results of a generation: completions, statistics, trace."""

import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bass.engine.cost import Peaks, total
from bass.engine.requests import StepRecord, Trace
from bass.printable import printable

MOST_SHOWN, LONGEST_SHOWN = (
    100,
    2000,
)  # limits of a notebook's table: completions, characters of each


@dataclass(frozen=True)
class Completion:
    """One sample of one prompt.

    prompt_index: the prompt's index in the call. sample_index: from 0; with
    `num_return_sequences=n`, occurrence j of a repeated prompt (the same token ids) has the samples
    j*n to j*n + n-1. text: `token_ids`, decoded, up to a stop string. token_ids: they end with the
    token that completed a stop string, see `bass.text.Transcript`. logprobs: the target's own
    (natural logarithm, before any warp), one per token; -9999 for a token that the target excludes
    (its logit is -inf). finish_reason: `eos`, `stop` (a stop string or stop token), `length`,
    `time` (the time budget ran out) or `interrupted` (the generation was closed or interrupted).
    seconds: from the end of its prefill to its last token.
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
        """Whether it ended by itself: at an end token, a stop string or its length limit."""
        return self.finish_reason in ("eos", "stop", "length")


@dataclass(frozen=True)
class StreamEvent:
    """Tokens that one step committed for one sample; its last event has a `finish_reason`.

    Where the time budget ends a sample, that event has no tokens, and the text that was held back
    in case a stop string, or the rest of a character, followed.
    """

    prompt_index: int
    sample_index: int
    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None


@dataclass(frozen=True)
class Counts:
    """Counts over some steps.

    Row-steps are active rows summed over steps: the target calls of all sequences.
    """

    steps: int
    row_steps: int
    drafted: int
    accepted: int
    emitted: int

    @property
    def tau(self) -> float | None:
        """Mean acceptance length: emitted tokens per target call, bonus included; None without
        calls.
        """
        return self.emitted / self.row_steps if self.row_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Stats(Counts):
    """Statistics of a run, named as in docs/metrics.md; None where a figure does not apply.

    lossless, batch_invariant: as declared by the verifier and the drafter. If `batch_invariant` is
    False, the tokens of a row depend on its batch (they also do with a batch-wide policy). first,
    last, all: see `first_last_all`. acceptance_by_position, reached_by_position: see the function
    `acceptance_by_position`.
    """

    tokens: int  # emitted, without those after a stop string
    acceptance_by_position: list[float | None]
    reached_by_position: list[int]
    first: float | None
    last: float | None
    all: float | None
    seconds: float  # until the last token, without captures
    prefill_seconds: float | None
    capture_seconds: float  # time for capturing graphs during the run: see `LLM.warm_up`
    bound_seconds: float | None
    mfu: float | None
    mfu_kept: float | None
    mbu: float | None
    lossless: bool
    batch_invariant: bool

    @property
    def tokens_per_second(self) -> float | None:
        """`tokens` per second of the whole run, prefill included; None where no time was spent."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def token_acceptance_rate(self) -> float | None:
        """Of the drafted tokens that were judged after nothing but accepted ones, the share that
        was accepted: the a of Leviathan et al. (2023). None where nothing was judged.
        """
        reached = sum(self.reached_by_position)
        return self.accepted / reached if reached else None

    def as_dict(self) -> dict[str, Any]:
        """Fields and derived figures, for JSON."""
        return vars(self) | {
            "tau": self.tau,
            "acceptance_rate": self.acceptance_rate,
            "token_acceptance_rate": self.token_acceptance_rate,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True)
class Result:
    """Completions in the order of the prompts and, within a prompt, of the samples."""

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
        remarks = [f"{name} {value:.3g}" for name, value in figures.items() if value is not None]
        remarks += [f"{left} more completions"] if left else []
        remarks += [] if self.stats.lossless else ["NOT LOSSLESS"]
        return f"<table>{_row('th', heads)}{table}</table><p>{', '.join(remarks)}</p>"


def _row(cell: str, values: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{cell}>{value}</{cell}>' for value in values)}</tr>"


def _shown(completion: Completion) -> str:
    """Text, or token ids without a tokenizer, escaped for HTML."""
    text = str(completion.token_ids) if completion.text is None else completion.text
    cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return html.escape(printable(cut, "\n\t"))


def count(steps: list[StepRecord]) -> Counts:
    """Counts over these steps."""
    return Counts(
        steps=len(steps),
        row_steps=sum(int(s.active.sum()) for s in steps),
        drafted=sum(int(s.drafted.sum()) for s in steps),
        accepted=sum(int(s.accepted.sum()) for s in steps),
        emitted=sum(int(s.emitted.sum()) for s in steps),
    )


def judged_lengths(step: StepRecord) -> np.ndarray:
    """Int [B], the number of verified tokens of each row's draft: all, unless the row ended inside.

    A row that ends at an accepted token emits nothing after it, and later tokens of its draft do
    not count as verified.
    """
    return np.where(step.active & (step.emitted == step.accepted), step.accepted, step.drafted)


def acceptance_by_position(steps: list[StepRecord]) -> tuple[list[float | None], list[int]]:
    """Conditional acceptance rate at each draft position, and its denominators.

    Entry i: among the drafts whose position i+1 was verified and whose earlier tokens were all
    accepted (`reached[i]` of them), the share whose token there was accepted; None where no draft
    reached it.
    """
    if not steps:
        return [], []
    drafted = np.concatenate([s.drafted for s in steps])
    judged = np.concatenate([judged_lengths(s) for s in steps])
    accepted = np.concatenate([s.accepted for s in steps])
    reached = [
        int(((judged > i) & (accepted >= i)).sum()) for i in range(int(drafted.max(initial=0)))
    ]
    passed = [int((accepted > i).sum()) for i in range(len(reached))]
    return [a / r if r else None for a, r in zip(passed, reached, strict=True)], reached


def first_last_all(
    sequences: Iterable[tuple[float, float, int]],
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Seconds per token of the first and the last sequence to finish, and the mean over sequences:
    the latencies of the BASS paper.

    sequences: (end of the prefill since the run began, seconds from then to the last token,
    tokens). Those without tokens are left out; returns None where none is left.
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
    """The share of the device's peaks that the steps reached; None if steps took no time.

    bound_seconds: the minimum time for moving the required bytes. mfu: FLOPs over the FLOPs
    possible in the time of the steps. mfu_kept: the same, counting only tokens whose next token was
    committed. mbu: the bound over the time of the steps. The FLOPs of attention are not counted.
    """

    bound_seconds: float | None
    mfu: float | None
    mfu_kept: float | None
    mbu: float | None


def utilization(steps: list[StepRecord], peaks: Peaks) -> Utilization:
    """Utilization of a device with these peaks by these steps."""
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
