"""What a request asks for: length, sampling and the end of its samples.

The fields of `SamplingParams` are the options of `LLM.generate`, of the command line and of
ablations; those of `Sampling` are what the engine packs into the row of each sample.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, TypedDict

from bass.errors import OptionError, RequestError
from bass.option import PerPrompt, check_value, for_one_prompt, option


class Sampling(NamedTuple):
    """The sampling options of one row, the columns of `Sequences.sampling`; by default none has an
    effect.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_new_tokens: int = 0


def stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """The stop strings, checked. Raises `OptionError`."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(one, str) and one for one in stops):
        raise OptionError(
            f"`stop={stop!r:.100}` must be a string or a list of strings, none of them empty."
        )
    return stops


@dataclass(frozen=True)
class SamplingParams:
    """Length, sampling and end of the samples of a call.

    The sampling options apply in this order: penalties, temperature, top_k, top_p, min_p. Their
    meanings are those of Hugging Face's generation options, or of vLLM for those that only vLLM
    has. Most take one value for all prompts, or a list of one per prompt.
    """

    max_new_tokens: PerPrompt[int] = option(256, "most new tokens per sample", within="[1, inf)")
    min_new_tokens: PerPrompt[int] = option(
        0, "least new tokens: no end of sequence and no stop token before", within="[0, inf)"
    )
    temperature: PerPrompt[float] = option(0.2, "0 is greedy", within="[0, 0] or [1e-6, 1e6]")
    top_p: PerPrompt[float] = option(
        0.95, "keep the most probable tokens up to this sum; 1 = off", within="(0, 1]"
    )
    top_k: PerPrompt[int] = option(
        0, "number of most probable tokens to keep; 0 or -1 = off", within="[-1, inf)"
    )
    min_p: PerPrompt[float] = option(
        0.0, "drop tokens below this share of the highest probability; 0 = off", within="[0, 1)"
    )
    repetition_penalty: PerPrompt[float] = option(
        1.0,
        "divides the logits of tokens of the prompt and the output; 1 = off",
        within="[1e-6, 1e6]",
    )
    presence_penalty: PerPrompt[float] = option(
        0.0, "subtracted from the logits of generated tokens, -2 to 2; 0 = off", within="[-2, 2]"
    )
    frequency_penalty: PerPrompt[float] = option(
        0.0,
        "subtracted once for each time a token was generated, -2 to 2; 0 = off",
        within="[-2, 2]",
    )
    max_draft_length: PerPrompt[int | None] = option(
        None,
        "most tokens to draft in a step; 0 = no speculation",
        within="[0, inf)",
    )
    seed: int = option(
        0,
        "the same seed gives the same tokens again, unless the policy goes by measured times",
        within="(-inf, inf)",
    )
    stop: str | Iterable[str] | None = option((), "strings before which a sample's text ends")
    stop_token_ids: Iterable[int] | None = option((), "token ids that end a sample")
    ignore_eos: bool = option(False, "continue after an end-of-sequence token")
    time_budget: float | None = option(
        None, "seconds after which unfinished samples are returned as they are", within="(0, inf)"
    )

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            if isinstance(value := getattr(self, name), Iterator):  # it can be read only once
                object.__setattr__(self, name, tuple(value))

    @property
    def row(self) -> Sampling:
        """The options of a row; they must be those of one prompt."""
        return Sampling(*(getattr(self, name) for name in Sampling._fields))

    def of_prompts(self, count: int) -> list[Self]:
        """The options of each of `count` prompts.

        Raises an `OptionError`, which names the prompt where a list has a value out of range, or a
        `RequestError` for a list of another length.
        """
        given = {name: listed(getattr(self, name)) for name in PER_PROMPT}
        lists = {n: x for n, x in given.items() if isinstance(x, Sequence) and type(x) is not str}
        for name, values in lists.items():
            if len(values) != count:
                raise RequestError(
                    f"`{name}` has {len(values)} values for {count} prompts: give one for all, "
                    "or one per prompt."
                )
        if not lists:
            self._check()
            return [self] * count
        each = [replace(self, **{n: x[i] for n, x in lists.items()}) for i in range(count)]
        for i, own in enumerate(each):
            try:
                own._check()
            except OptionError as error:
                raise OptionError(f"Prompt {i}: {error}") from error
        return each

    def _check(self) -> None:
        """Check the options of one prompt."""
        for one in fields(self):
            check_value(one, listed(getattr(self, one.name)))
        if self.min_new_tokens > self.max_new_tokens:  # pyright: ignore[reportOperatorIssue]
            raise OptionError(
                f"`min_new_tokens={self.min_new_tokens}` is more than "
                f"`max_new_tokens={self.max_new_tokens}`: lower it, or raise `max_new_tokens`."
            )


class SamplingFields(TypedDict, total=False):
    """The fields of `SamplingParams`, for the signatures of functions that take them by keyword."""

    max_new_tokens: PerPrompt[int]
    min_new_tokens: PerPrompt[int]
    temperature: PerPrompt[float]
    top_p: PerPrompt[float]
    top_k: PerPrompt[int]
    min_p: PerPrompt[float]
    repetition_penalty: PerPrompt[float]
    presence_penalty: PerPrompt[float]
    frequency_penalty: PerPrompt[float]
    max_draft_length: PerPrompt[int | None]
    seed: int
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool
    time_budget: float | None


PER_PROMPT = [f.name for f in fields(SamplingParams) if for_one_prompt(f.type) is not f.type]


def listed(value: Any) -> Any:
    """An array of NumPy or torch as a list; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value
