"""Results of a generation: completions, steps, and the statistics that are computed when read."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from bass.engine.cost import Peaks
from bass.engine.requests import StepRecord
from bass.errors import counted, printable
from bass.host_records import OWN_ENDS

if TYPE_CHECKING:
    import pandas as pd

    from bass.analysis.metrics import Measurement

# of a notebook's table: completions at most, characters of each at most, and figures below
MOST_SHOWN, LONGEST_SHOWN, LONGEST_LINE = 100, 2000, 80
FIGURES = {"tau": "tau {}", "acceptance_rate": "{} % accepted", "tokens_per_second": "{} tokens/s"}


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
    seconds: from the end of its prefill to its last token. prompt_tokens: the length of its prompt.
    prefill_seconds: from the start of the call to the end of its prefill, a wait for a row
    included; None if it never had a row. arrival_seconds, first_token_seconds: from the start of
    the call to its arrival (0 but in `LLM.serve`) and to its first tokens. With `LLM.submit`, times
    count from the submission. seed: of its request.
    """

    prompt_index: int
    sample_index: int
    text: str | None
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    seconds: float
    prompt_tokens: int = 0
    prefill_seconds: float | None = None
    arrival_seconds: float = 0.0
    first_token_seconds: float | None = None
    seed: int = 0

    def __repr__(self) -> str:
        about = f"{counted(len(self.token_ids), 'token')}, ended by {self.finish_reason}"
        return f"Completion {self.prompt_index}.{self.sample_index}: {about}, {_text(self)!r}"

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token; 0 for an empty completion."""
        return float(np.mean(self.logprobs)) if self.logprobs else 0.0

    @property
    def finished(self) -> bool:
        """Whether it ended by itself: at an end token, a stop string or its length limit."""
        return self.finish_reason in OWN_ENDS


@dataclass(frozen=True)
class StreamEvent:
    """Tokens that one step committed for one sample; its last event has a `finish_reason`.

    Where the time budget ends a sample, or `cancel()` of `LLM.submit` (`cancelled`), that event has
    no tokens, and the text that was held back in case a stop string, or the rest of a character,
    followed.
    """

    prompt_index: int
    sample_index: int
    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None


@final
class Stats:
    """Figures of a call: every metric and profile of `bass.analysis.metrics` is an attribute.

    They are computed when they are read; one that does not apply is None. lossless,
    batch_invariant: as declared by the verifier, the drafter and the trim, the first for the call's
    temperatures. If `batch_invariant` is False, the tokens of a row depend on its batch (they also
    do with a batch-wide policy such as `auto`). capture_seconds: time for capturing CUDA graphs
    during the call, in no other time: see `LLM.warm_up`.
    """

    def __init__(self, result: "Result") -> None:
        self._result = result
        self.lossless, self.batch_invariant = result.lossless, result.batch_invariant
        self.capture_seconds = result.capture_seconds

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from bass.analysis.metrics import METRICS, PROFILES, profile

        if name in METRICS:
            return METRICS[name](self._result.measurement)
        if name in PROFILES:
            return profile(self._result.measurement, name)
        raise AttributeError(f"There is no metric `{name}`: `dir(stats)` lists all.")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, for JSON."""
        return {name: getattr(self, name) for name in self._names()}

    def _names(self) -> list[str]:
        from bass.analysis.metrics import METRICS, PROFILES

        alone = [name for name, metric in METRICS.items() if not metric.compares]
        return [*alone, *PROFILES, "lossless", "batch_invariant", "capture_seconds"]

    def __repr__(self) -> str:
        return f"Stats: {', '.join(self._result._remarks())}; `as_dict()` has all figures"


@final
@dataclass(frozen=True)
class Result:
    """Completions in the order of the prompts and, within a prompt, of the samples.

    trace: the record of each step. peaks: measures the peaks of the device, when a metric of its
    use is read.
    """

    completions: list[Completion]
    trace: list[StepRecord] = field(repr=False)
    peaks: Callable[[], Peaks] | None = field(repr=False, default=None)
    lossless: bool = True
    batch_invariant: bool = True
    capture_seconds: float = 0.0

    @functools.cached_property
    def measurement(self) -> "Measurement":
        """The steps and requests as frames, which metrics read."""
        from bass.analysis.frames import measured

        facts = {}
        if (peaks := self.peaks) is not None:
            facts = {"bandwidth": lambda: peaks().bandwidth, "flops": lambda: peaks().flops}
        return measured(self.trace, self.completions, facts)

    @property
    def stats(self) -> Stats:
        """The figures of the call."""
        return Stats(self)

    @property
    def steps(self) -> "pd.DataFrame":
        """One row per step: see `bass.analysis.frames.steps_frame`."""
        return self.measurement.steps

    def to_pandas(self) -> "pd.DataFrame":
        """One row per completion: see `bass.analysis.frames.requests_frame`."""
        return self.measurement.requests

    def __repr__(self) -> str:
        """The number of completions, the figures, and the beginning of the first text."""
        tokens = f"{sum(len(one.token_ids) for one in self.completions):,} tokens"
        about = ", ".join([counted(len(self.completions), "completion"), tokens, *self._remarks()])
        text = " ".join(_text(self.completions[0]).split()) if self.completions else ""
        return f"Result: {about}\n  {text[:LONGEST_LINE]}{' ...' * (len(text) > LONGEST_LINE)}"

    def _remarks(self) -> list[str]:
        """Figures that need no measurement of the device, and what a reader has to know."""
        from bass.analysis.metrics import METRICS

        values = {name: METRICS[name](self.measurement) for name in FIGURES}
        known = {name: METRICS[name].show(x) for name, x in values.items() if x is not None}
        remarks = [FIGURES[name].format(text) for name, text in known.items()]
        return remarks + ([] if self.lossless else ["NOT LOSSLESS"])

    def _repr_html_(self) -> str:
        """A table of the completions, for a notebook."""
        import pandas as pd

        columns = ["prompt", "sample", "text", "tokens", "mean logprob", "ended by"]
        shown = self.completions[:MOST_SHOWN]
        rows = [
            (c.prompt_index, c.sample_index, _text(c), len(c.token_ids), c.mean_logprob,
             c.finish_reason)
            for c in shown
        ]  # fmt: skip
        with pd.option_context("display.max_colwidth", LONGEST_SHOWN):
            table = pd.DataFrame(rows, columns=columns).to_html(
                index=False, float_format="{:.3f}".format
            )
        table = table.replace("<td>", '<td style="white-space: pre-wrap">')
        left = len(self.completions) - len(shown)
        remarks = self._remarks() + ([f"{left} more completions"] if left else [])
        return f"{table}<p>{', '.join(remarks)}</p>"


def _text(completion: Completion) -> str:
    """Text, or token ids without a tokenizer, safe to show."""
    text = str(completion.token_ids) if completion.text is None else completion.text
    return printable(text, "\n\t")
