"""The settings of one cell: the arguments of `bass.load` and of `LLM.stream`, the prompts, and the
number of repeats.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from bass.api.checks import check_sequences, examine
from bass.api.elsewhere import named_elsewhere
from bass.api.options import (
    LoadOptions,
    ModelOptions,
    PolicySpec,
    RequestOptions,
    SamplingOptions,
    for_one_prompt,
    help_of,
    kinds_of,
    option,
    strategy,
)
from bass.api.plan import CHECKPOINTS, LoadPlan
from bass.api.resolve import make
from bass.api.values import fits, in_words
from bass.errors import OptionError, unknown_name
from bass.problems import Problems
from bass.prompts.entries import Entry, turned
from bass.prompts.published import SETS
from bass.prompts.reading import Selection
from bass.runs.prompts import BUILT_IN, numbers, occurrences, read_prompts

_HELP = help_of(ModelOptions) | help_of(SamplingOptions)
LIMITS = ("ttft_limit", "tpot_limit", "e2e_limit")
_COUNTS = ("batch", "samples", "num_prompts", "num_prompts_per_category", "repeats")


@final
@dataclass(frozen=True)
class Limits:
    """Latency limits in seconds, or None: to the first token, per later token, to the last."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit > 0:
                raise OptionError(
                    f"The latency limit `{name}={limit}` must be over 0 seconds, or None."
                )


NO_LIMITS = Limits()


@final
@dataclass(frozen=True)
class Settings(ModelOptions, SamplingOptions):
    """One cell. Options of `bass generate` have the same meaning here."""

    target: str | None = option(None, _HELP["target"])
    draft: str | None = option(None, _HELP["draft"])
    lora: str | None = option(None, _HELP["lora"])
    draft_lora: str | None = option(None, _HELP["draft_lora"])
    family: str | None = option(None, _HELP["family"])
    policy: PolicySpec = strategy("bass", "policy")
    max_new_tokens: int = option(128, _HELP["max_new_tokens"])
    min_new_tokens: int = option(0, _HELP["min_new_tokens"])
    stop: str | list[str] = option("", _HELP["stop"])
    stop_token_ids: list[int] | None = option(None, _HELP["stop_token_ids"])
    batch: int = option(8, "rows that decode together")
    samples: int | None = option(
        None,
        "of each prompt, all prompts in one call; null: as many as rows, one prompt at a time, as "
        "in the BASS paper",
    )
    prompts: str | list[str | list[int] | dict[str, Any]] = option(
        "python",
        "the name of a published set, such as `spec-bench`; a file of prompts, or of one text; a "
        "list of texts, of token ids, or of mappings as in a file; or `python`, the built-in ones",
    )
    data: str | None = option(
        None, "the folder of published sets; null: of the environment variable BASS_DATA"
    )
    categories: str | list[str] | None = option(None, "use only prompts of these categories")
    num_prompts_per_category: int | None = option(
        None, "use only the first N prompts of each category"
    )
    num_prompts: int | None = option(
        None, "use only the first N prompts, of all categories together"
    )
    skip_long: bool = option(
        False,
        "leave out prompts that do not fit the context next to the new tokens, and say how many; "
        "otherwise they are an error",
    )
    repeats: int = option(3, "number of repeats, each with the next seed")
    warm_up: bool = option(True, "run a first step and capture CUDA graphs before the measurement")
    ttft_limit: float | None = option(
        None, "latency limit of goodput: seconds to a request's first token"
    )
    tpot_limit: float | None = option(
        None, "latency limit of goodput: seconds for each later token"
    )
    e2e_limit: float | None = option(None, "latency limit of goodput: seconds to the last token")

    def examine(self, problems: Problems) -> None:
        """Record values out of range, as `LLM.stream` would report them in a run."""
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.add(f"`{name}: {value}` is too small: give 1 or more.", name)
        examine(vars(self) | {"stop": self.stops}, problems)
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                problems.add(
                    f"`{name}: {value}` must be more than 0 seconds, or null for no limit."
                )
        if not (self.seed >= -(2**63) and self.seed + self.repeats < 2**63):
            problems.add(
                f"`seed: {self.seed}` must fit into 64 bits, and the seeds of the "
                f"{self.repeats} repeats too: give a smaller one."
            )
        with problems.noted("", "prompts"):
            prompts = len(self.read_prompts())
            with problems.noted("", "batch", "samples"):
                if self.samples is None:
                    check_sequences("batch", self.batch, 1)
                else:
                    check_sequences("samples", self.samples, prompts)

    def with_defaults(self, names: Collection[str]) -> "Settings":
        """The settings, with the defaults of those named; unknown names are ignored."""
        return (
            replace(self, **{name: value for name, value in DEFAULTS.items() if name in names})
            if names
            else self
        )

    def read_prompts(self) -> list[Entry]:
        """The prompts themselves."""
        return self._prompts

    @functools.cached_property
    def _prompts(self) -> list[Entry]:
        return read_prompts(self.prompts, self.data, self.selection)

    @property
    def published(self) -> bool:
        """Whether the prompts are those of a published set."""
        return isinstance(self.prompts, str) and self.prompts in SETS

    @property
    def selection(self) -> Selection:
        """Which prompts are used."""
        return Selection.named(self.categories, self.num_prompts_per_category, self.num_prompts)

    @property
    def source(self) -> tuple[str, ...]:
        """A key of where the prompts are from, which ones, and which are used."""
        own = self.prompts if isinstance(self.prompts, str) else f"{id(self.prompts)}"
        return own, str(self.data), repr(self.selection)

    @property
    def size(self) -> tuple[int, int]:
        """The number of calls, and of sequences that all of them generate together."""
        calls = self._one_repeat
        return (
            self.repeats * len(calls),
            self.repeats * sum(call.requests for call in calls),
        )

    @property
    def batches(self) -> int:
        """The number of full batches of its calls."""
        return self.repeats * sum(-(-call.requests // self.batch) for call in self._one_repeat)

    @property
    def stops(self) -> list[str]:
        """Texts before which a sample ends; the setting `""` is none."""
        if isinstance(self.stop, str):
            return [self.stop] if self.stop else []
        return self.stop

    @functools.cached_property
    def _one_repeat(self) -> "list[Call]":
        """The calls of the first repeat: of each group of prompts one for each turn."""
        prompts = self.read_prompts()
        groups = [(prompts, numbers(prompts), 0)]
        if self.samples is None:  # a repeated prompt gets further samples, as within one call
            repeated = zip(prompts, numbers(prompts), occurrences(prompts), strict=True)
            groups = [([prompt], [n], before * self.batch) for prompt, n, before in repeated]
        calls: list[Call] = []
        for group, own, first in groups:
            places = range(len(group))
            for turn in range(turned(group)):
                kept = [i for i, place in enumerate(places) if group[place].turns > turn]
                places = [places[i] for i in kept]
                calls.append(
                    Call(
                        len(calls),
                        [group[place] for place in places],
                        self.samples or self.batch,
                        self.seed,
                        first,
                        [own[place] for place in places],
                        turn,
                        tuple(kept) if turn else (),
                    )
                )
        return calls

    @functools.cached_property
    def calls(self) -> "list[Call]":
        """All calls in order: those of the first repeat, then those of the second."""
        once = self._one_repeat
        return [
            replace(call, number=turn * len(once) + call.number, seed=self.seed + turn)
            for turn in range(self.repeats)
            for call in once
        ]

    @property
    def stream_with(self) -> dict[str, Any]:
        """The arguments of `LLM.stream` that all calls share."""
        names = [f.name for f in fields(SamplingOptions) if f.name not in ("seed", "stop")]
        return {name: getattr(self, name) for name in names} | {"stop": self.stops}

    @property
    def limits(self) -> Limits:
        """Latencies within which a request counts for goodput."""
        return Limits(**{name.removesuffix("_limit"): getattr(self, name) for name in LIMITS})

    def load_plan(self) -> LoadPlan:
        """The checked arguments of `load`; reads no weight.

        The draft, its adapter and its quantization come from the base run; a cell whose drafter
        needs no draft model has none. Raises a `BassError` for parts that do not match.
        """
        options = {name: getattr(self, name) for name in PLANNED if name != "batch"}
        options["drafter"] = make("drafter", options["drafter"])
        if not options["drafter"].needs_draft:
            options |= {"draft": None, "draft_lora": None, "draft_quantization": None}
        return LoadPlan.of(LoadOptions(**options, max_batch_size=self.batch))


@final
@dataclass(frozen=True)
class Call:
    """One call of `LLM.start`, which is one generation of a cell; those of one seed are a repeat.

    `number`: counts the cell's calls from 0. `samples`: of each prompt. `first_sample`: more than 0
    where calls before it with the same seed have the same prompt. `prompt_numbers`: see
    `bass.runs.prompts.numbers`. `turn`: of the conversations, from 0. `places`: of each prompt of a
    later turn, its place among those of the call before, whose answers it continues.
    """

    number: int
    prompts: list[Entry]
    samples: int
    seed: int
    first_sample: int
    prompt_numbers: list[int]
    turn: int = 0
    places: tuple[int, ...] = ()

    def options(self, shared: Mapping[str, Any]) -> RequestOptions:
        """Its own options, with those that all calls share. A later turn has a prompt for each
        sample, since each continues its own answer.
        """
        samples = self.samples if self.turn == 0 else 1
        return RequestOptions(num_return_sequences=samples, seed=self.seed, **shared)

    @property
    def requests(self) -> int:
        """The number of sequences."""
        return len(self.prompts) * self.samples


SETTINGS = {f.name: f for f in fields(Settings)}
# the settings that determine a `LoadPlan`
PLANNED = ("batch", *(f.name for f in fields(ModelOptions)))
DEFAULTS = asdict(Settings())
KIND = kinds_of(ModelOptions)  # kind of each setting that names a strategy


def unknown_setting(name: str) -> OptionError:
    """The error for an unknown setting, with the name in bass for a name of another library."""
    return named_elsewhere(name, help_of(Settings), "setting") or unknown_name(
        "setting", name, SETTINGS
    )


def typed_setting(name: str, value: Any) -> Any:
    """A value in the type of the setting. Raises for another type.

    `Settings.load_plan` checks strategies.
    """
    if name not in SETTINGS:
        raise unknown_setting(name)
    hint: Any = for_one_prompt(SETTINGS[name].type)
    if name not in KIND and not fits(value, hint):
        shown = "null" if value is None else f"{value!r:.60}"
        raise OptionError(f"`{name}: {shown}` is of the wrong type: give {in_words(hint)}.")
    try:
        return float(value) if isinstance(value, int) and hint in (float, float | None) else value
    except OverflowError as error:
        raise OptionError(
            f"`{name}: {value!r:.60}` is too large a number: give a smaller one."
        ) from error


def overlaid(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with overrides, in which `policy.k` is the parameter `k` of the policy.

    Raises an `OptionError` for an unknown one.
    """
    result = dict(settings)
    for key in sorted(
        overrides, key=lambda key: key.count(".")
    ):  # a strategy before its parameters
        head, _, rest = key.partition(".")
        result[head] = (
            typed_setting(head, overrides[key])
            if not rest
            else _with_parameter(head, head, result.get(head), rest, overrides[key])
        )
    return result


def _with_parameter(key: str, head: str, spec: Any, path: str, value: Any) -> dict[str, Any]:
    if head not in KIND:
        raise OptionError(
            f"`{key}.{path}` is a parameter, and `{key}` has none: name one of "
            f"{', '.join(sorted(KIND))}."
        )
    if spec in (None, "auto"):
        raise OptionError(
            f"`{key}.{path}` is a parameter without a strategy: name one with `{key}`."
        )
    whole = dict(spec) if isinstance(spec, Mapping) else {"class_path": spec}
    given = dict(whole.get("init_args") or {})
    name, _, rest = path.partition(".")
    given[name] = (
        _with_parameter(f"{key}.{name}", head, given.get(name), rest, value) if rest else value
    )
    return whole | {"init_args": given}


def anchored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with absolute paths. Raises `OptionError` for prompts that cannot be read."""
    result = dict(settings)
    for name in CHECKPOINTS:
        if result.get(name) and Path(result[name]).exists():
            result[name] = str(Path(result[name]).resolve())
    if result.get("data"):
        result["data"] = str(Path(result["data"]).resolve())
    prompts = result.get("prompts")
    if isinstance(prompts, str) and prompts not in BUILT_IN:
        read_prompts(prompts, result.get("data"))
        if prompts not in SETS:
            result["prompts"] = str(Path(prompts).resolve())
    return result
