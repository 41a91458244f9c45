"""What a request asks for: length, sampling and the end of its samples.

These fields are the options of `LLM.generate`, of the command line and of ablations; the engine
packs those of `SAMPLING_OPTIONS` into the row of each sample.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypedDict

from bass.errors import OptionError, RequestError
from bass.option import PerPrompt, check_value, for_one_prompt, option

# The columns of `Sequences.sampling`, with the values that disable each option.
SAMPLING_OPTIONS: dict[str, float] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_new_tokens": 0,
}


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
    temperature: PerPrompt[float] = option(
        0.2,
        "0 is greedy",
        within="[0, 0] or [1e-6, 1e6]",
    )
    top_p: PerPrompt[float] = option(
        0.95,
        "keep the most probable tokens up to this sum; 1 = off",
        within="(0, 1]",
    )
    top_k: PerPrompt[int] = option(
        0, "number of most probable tokens to keep; 0 or -1 = off", within="[-1, inf)"
    )
    min_p: PerPrompt[float] = option(
        0.0,
        "drop tokens below this share of the highest probability; 0 = off",
        within="[0, 1)",
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
    seed: int = option(
        0,
        "the same seed gives the same tokens again, unless the policy goes by measured times",
        within="(-inf, inf)",
    )
    stop: str | Iterable[str] | None = option(
        (),
        "strings before which a sample's text ends",
    )
    stop_token_ids: Iterable[int] | None = option((), "token ids that end a sample")
    ignore_eos: bool = option(False, "continue after an end-of-sequence token")
    time_budget: float | None = option(
        None,
        "seconds after which unfinished samples are returned as they are",
        within="(0, inf)",
    )

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            if isinstance(value := getattr(self, name), Iterator):  # it can be read only once
                object.__setattr__(self, name, tuple(value))

    @property
    def row(self) -> tuple[float, ...]:
        """A row of `Sequences.sampling`; the options must be those of one prompt."""
        return tuple(float(getattr(self, name)) for name in SAMPLING_OPTIONS)

    def of_prompts(self, count: int) -> list[Self]:
        """The options of each of `count` prompts.

        Raises an `OptionError`, which names the prompt where a list has a value out of range, or a
        `RequestError` for a list of another length.
        """
        each: list[dict[str, Any]] = [{} for _ in range(count)]
        for one in fields(self):
            value = listed(getattr(self, one.name))
            if one.name not in PER_PROMPT or not is_list(value):
                check_value(one, value)
                continue
            if len(value) != count:
                raise RequestError(
                    f"`{one.name}` has {len(value)} values for {count} prompts: give one for all, "
                    "or one per prompt."
                )
            for i, own in enumerate(value):
                with of_prompt(i):
                    check_value(one, own)
                each[i][one.name] = own
        alone = [replace(self, **own) if own else self for own in each]
        for i, own in enumerate(alone):
            with of_prompt(i if each[i] else None):
                if own.min_new_tokens > own.max_new_tokens:  # pyright: ignore[reportOperatorIssue]
                    raise OptionError(
                        f"`min_new_tokens={own.min_new_tokens}` is more than "
                        f"`max_new_tokens={own.max_new_tokens}`: lower it, or raise "
                        "`max_new_tokens`."
                    )
        return alone


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
    seed: int
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool
    time_budget: float | None


PER_PROMPT = [f.name for f in fields(SamplingParams) if for_one_prompt(f.type) is not f.type]


@contextmanager
def of_prompt(index: int | None) -> Iterator[None]:
    """Name the prompt in an `OptionError` raised within; None for options of all prompts."""
    try:
        yield
    except OptionError as error:
        if index is None:
            raise
        raise OptionError(f"Prompt {index}: {error}") from error


def listed(value: Any) -> Any:
    """An array of NumPy or torch as a list; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_list(value: Any) -> bool:
    """Whether an option has one value per prompt."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
