"""The options of a cell of an ablation, of `bass bench` and of `bass eval`; they load no torch."""

import functools
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, final

from bass.api.options import (
    DEFAULT_POLICY,
    STRATEGIES,
    ModelOptions,
    RequestOptions,
    StrategySpec,
    counterpart_error,
    strategy,
    typed,
)
from bass.errors import OptionError, check_number, unknown_name
from bass.experiments.problems import NAMES
from bass.experiments.prompts import Entry, numbers, read_prompts
from bass.option import check_needed, check_options, for_one_prompt, help_of, like, option
from bass.sampling_params import SamplingParams

_CONFIGS = Path(str(files("bass.experiments"))) / "configs"
CONFIGS = {path.stem: path for path in sorted(_CONFIGS.glob("*.yaml"))}  # the packaged ones
SAMPLING = [f.name for f in fields(SamplingParams)]
LIMITS = ("ttft_limit", "tpot_limit", "e2e_limit")
PLAIN = "plain"  # the method of autoregressive decoding
METHODS = ("batched", PLAIN, "single")  # of an evaluation
_COUNT, _LIMIT = "[1, inf)", "(0, inf)"


def request_of(options: SamplingParams, repeat: int = 0, samples: int = 1) -> RequestOptions:
    """The options of a call of a repeat, each with the next seed."""
    shared: dict[str, Any] = {name: getattr(options, name) for name in SAMPLING}
    shared["seed"] += repeat
    return RequestOptions(num_return_sequences=samples, **shared)


class Queued:
    """What `Settings` and `BenchOptions` share about the options of a queue, which are theirs."""

    max_new_tokens: Any
    lengths: Any

    @property
    def longest(self) -> int:
        """The most new tokens of a request."""
        return max((self.max_new_tokens, *self.lengths))

    def check_queue(self) -> None:
        """Raise `OptionError` for an option of a queue without one, and for wrong `lengths`."""
        check_needed(self, "queue", "rate", "lengths", *LIMITS)
        lengths = [*self.lengths]
        if lengths and not (len(lengths) == 2 and 1 <= lengths[0] <= lengths[1]):
            raise OptionError(
                f"`lengths={lengths}` are not the least and the most new tokens: give two numbers "
                "from 1, the smaller one first."
            )


@final
@dataclass(frozen=True)
class Settings(Queued, ModelOptions, SamplingParams):
    """One cell. Options of `bass generate` have the same meaning here."""

    policy: StrategySpec = strategy(DEFAULT_POLICY, "policy")
    max_new_tokens: int = like(SamplingParams, "max_new_tokens", 128)
    stop: str | list[str] | None = like(SamplingParams, "stop", None)
    stop_token_ids: list[int] | None = like(SamplingParams, "stop_token_ids", None)
    batch: int = option(8, "rows that decode together", within=_COUNT)
    samples: int | None = option(
        None,
        "of each prompt, all in one call; null: `batch`, one prompt a call, as in the paper",
        within=_COUNT,
    )
    prompts: str | list[Any] = option(
        "python",
        "`python` (built-in), a published set such as `spec-bench`, a file, or a list of texts, "
        "token ids or mappings",
    )
    data: str | None = option(None, "folder of published sets; null: that of BASS_DATA")
    categories: str | list[str] | None = option(None, "only prompts of these categories")
    num_prompts: int | None = option(None, "only the first N prompts", within=_COUNT)
    queue: int | None = option(
        None, "requests, of the prompts in turn, that share the rows", within=_COUNT
    )
    rate: float | None = option(
        None, "their arrivals a second, at random; null: all at once", within=_LIMIT
    )
    lengths: list[int] | tuple[int, ...] = option(
        (), "their least and most new tokens, instead of max_new_tokens"
    )
    skip_long: bool = option(False, "leave out prompts that do not fit the context, and say so")
    repeats: int = option(3, "number of repeats, each with the next seed", within=_COUNT)
    ttft_limit: float | None = option(
        None, "most seconds to a request's first token, for goodput", within=_LIMIT
    )
    tpot_limit: float | None = option(
        None, "most seconds for each later token, for goodput", within=_LIMIT
    )
    e2e_limit: float | None = option(
        None, "most seconds to the last token, for goodput", within=_LIMIT
    )

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """The prompts. Raises `OptionError` if they cannot be read."""
        return read_prompts(self.prompts, self.data, self.categories, self.num_prompts)

    @functools.cached_property
    def groups(self) -> "list[Group]":
        """The groups of prompts of a repeat: all prompts, or without `samples` one each."""
        entries, each = self.entries, numbers(self.entries)
        if self.queue is not None:
            places = [i % len(entries) for i in range(self.queue)]
            return [Group([entries[i] for i in places], [each[i] for i in places], 1)]
        if self.samples is not None:
            return [Group(entries, each, self.samples)]
        # a repeated prompt gets further samples, as within one call
        firsts = [each[:i].count(number) * self.batch for i, number in enumerate(each)]
        found = zip(entries, each, firsts, strict=True)
        return [Group([entry], [number], self.batch, first) for entry, number, first in found]


@final
@dataclass(frozen=True)
class Group:
    """Prompts that decode together, with a call for each turn of their conversations.

    prompts: of each entry, its number among the cell's different prompts. samples: of each.
    first_sample: more than 0 where earlier groups have the same prompt.
    """

    entries: list[Entry]
    prompts: list[int]
    samples: int
    first_sample: int = 0

    @property
    def turns(self) -> int:
        """The number of its calls."""
        return max(entry.turns for entry in self.entries)


SETTINGS = {f.name: f for f in fields(Settings)}
DEFAULTS: dict[str, Any] = {name: f.default for name, f in SETTINGS.items()}


def typed_setting(name: str, value: Any) -> Any:
    """A value in the type of the setting. Raises `OptionError`; strategies are checked later."""
    if name not in SETTINGS:
        counterpart = counterpart_error(name, help_of(Settings), "setting")
        raise counterpart or unknown_name("setting", name, SETTINGS)
    if name in STRATEGIES or name == "family":
        return value
    hint: Any = for_one_prompt(SETTINGS[name].type)
    if value is None and DEFAULTS[name] is not None:
        raise OptionError(f"`{name}: null` is of the wrong type: expected {hint}.")
    return typed(f"{name}: {value!r:.60}", value, hint)


@final
@dataclass(frozen=True)
class BenchOptions(Queued, SamplingParams):
    """What to measure, and how often; `ignore_eos` and limits of length are the benchmark's own."""

    methods: list[int | str] | None = option(
        None,
        "methods to compare: plain (autoregressive decoding), draft lengths, and policies, besides "
        "the one of `policy` or `num_speculative_tokens`; by default plain",
    )
    batches: list[int] | tuple[int, ...] = option((1, 8), "batch sizes")
    prompt_length: int = option(
        150, "tokens of each random prompt, and of each piece of a text", within=_COUNT
    )
    max_new_tokens: int = like(
        SamplingParams, "max_new_tokens", 128, "new tokens of each row, all of them decoded"
    )
    repeats: int = option(
        3, "timed calls of each setting, taking turns between methods", within=_COUNT
    )
    acceptance: float | None = option(
        None,
        "accept each drafted token with this probability (NOT LOSSLESS); given those before it",
        within="[0, 1]",
    )
    prompts: str | None = option(
        None, "a published set, a file of prompts, or a text, cut into pieces; null: random tokens"
    )
    data: str | None = option(None, "the folder of published sets; null: that of BASS_DATA")
    categories: list[str] | None = option(None, "with `prompts`: only these categories")
    seed: int = like(
        SamplingParams, "seed", 0, "seed of the prompts; the calls have the seeds after it"
    )
    ignore_eos: bool = like(SamplingParams, "ignore_eos", True)
    queue: int | None = like(Settings, "queue", None)
    rate: float | None = like(Settings, "rate", None)
    lengths: list[int] | tuple[int, ...] = like(Settings, "lengths", ())
    ttft_limit: float | None = like(Settings, "ttft_limit", None)
    tpot_limit: float | None = like(Settings, "tpot_limit", None)
    e2e_limit: float | None = like(Settings, "e2e_limit", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        for batch in self.batches:
            check_number("batches", batch, _COUNT)
        check_needed(self, "prompts", "data", "categories")
        self.check_queue()


@final
@dataclass(frozen=True)
class EvalOptions(RequestOptions):
    """The options of `evaluate`: those of a request, and of the problems and their scores."""

    num_return_sequences: int = like(
        RequestOptions, "num_return_sequences", 8, "samples of each problem"
    )
    problems: str = option("small", f"{', '.join(NAMES)}, or a file in the format of one")
    data: str | None = option(None, "folder of the published files, by default that of BASS_DATA")
    methods: list[str] | None = option(None, f"of {', '.join(METHODS)}, by default the first two")
    budgets: list[float] | None = option(None, "in seconds, by default ten for the samples' times")
    limit: int | None = option(None, "only the first N problems", within=_COUNT)
    skip_long: bool = option(False, "leave out problems whose prompts do not fit the context")
    program_seconds: float = option(10.0, "time limit of each program that the model writes")
    allow_code_execution: bool = option(False, "run them as yourself where bubblewrap is missing")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        for method in self.methods or ():
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
