"""The settings of one cell: the arguments of `bass.load` and `LLM.generate`, the prompts, and the
number of repeats.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from bass.api.elsewhere import named_elsewhere
from bass.api.options import LoadOptions, ModelOptions, RequestOptions, StrategySpec, strategy
from bass.api.resolve import make
from bass.api.values import option_value, wrong_type
from bass.errors import BassError, OptionError, unknown_name
from bass.experiments.prompts import Entry, numbers, occurrences, read_prompts
from bass.option import (
    check_value,
    for_one_prompt,
    help_of,
    kinds_of,
    like,
    option,
)
from bass.sampling_params import SamplingParams

if TYPE_CHECKING:  # loads torch
    from bass.api.plan import LoadPlan

_CONFIGS = Path(str(files("bass.experiments"))) / "configs"
CONFIGS = {path.stem: path for path in sorted(_CONFIGS.glob("*.yaml"))}  # the packaged ones
STRATEGIES = kinds_of(ModelOptions)  # kind of each setting that names a strategy
LIMITS = ("ttft_limit", "tpot_limit", "e2e_limit")
_COUNT, _LIMIT = "[1, inf)", "(0, inf)"


@final
@dataclass(frozen=True)
class Settings(ModelOptions, SamplingParams):
    """One cell. Options of `bass generate` have the same meaning here."""

    policy: StrategySpec = strategy("bass", "policy")
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
    categories: str | list[str] | None = option(None, "use only prompts of these categories")
    num_prompts_per_category: int | None = option(
        None, "use only the first N of each category", within=_COUNT
    )
    num_prompts: int | None = option(
        None, "use only the first N prompts, of all categories", within=_COUNT
    )
    skip_long: bool = option(False, "leave out prompts that do not fit the context, and say so")
    repeats: int = option(3, "number of repeats, each with the next seed", within=_COUNT)
    warm_up: bool = option(True, "run a first step and capture CUDA graphs before the measurement")
    ttft_limit: float | None = option(
        None, "limit of goodput: seconds to a request's first token", within=_LIMIT
    )
    tpot_limit: float | None = option(
        None, "limit of goodput: seconds for each later token", within=_LIMIT
    )
    e2e_limit: float | None = option(
        None, "limit of goodput: seconds to the last token", within=_LIMIT
    )

    def problems(self) -> dict[str, str]:
        """Sentences about values out of range and unreadable prompts, with the setting's name."""
        found = {}
        for one in fields(self):
            try:
                check_value(one, self.entries if one.name == "prompts" else getattr(self, one.name))
            except BassError as error:
                found[str(error)] = one.name
        return found

    def problems_of_models(self) -> dict[str, str]:
        """Sentences about strategies, with the name, and with "" about parts that do not match."""
        found: dict[str, str] = {}
        for name, kind in STRATEGIES.items():
            value = getattr(self, name)
            if value is not None and value != "auto":
                try:
                    make(kind, value, name)
                except BassError as error:
                    found[str(error)] = name
        try:
            valid = {name: DEFAULTS[name] for name in found.values()}
            replace(self, batch=max(self.batch, 1), **valid).load_plan()
        except BassError as error:
            found[str(error)] = ""
        return found

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """The prompts. Raises `OptionError` if they cannot be read."""
        per_category, most = self.num_prompts_per_category, self.num_prompts
        return read_prompts(self.prompts, self.data, self.categories, per_category, most)

    @functools.cached_property
    def calls(self) -> "list[Call]":
        """The calls of one repeat: of each group of prompts one for each turn."""
        entries, samples = self.entries, self.samples or self.batch
        groups = [(entries, numbers(entries), 0)]
        if self.samples is None:  # a repeated prompt gets further samples, as within one call
            each = zip(entries, numbers(entries), occurrences(entries), strict=True)
            groups = [([entry], [number], before * samples) for entry, number, before in each]
        found: list[Call] = []
        for group, (own, prompts, first) in enumerate(groups):
            for turn in range(max(entry.turns for entry in own)):
                places = [i for i, entry in enumerate(own) if entry.turns > turn]
                kept = [own[i] for i in places], [prompts[i] for i in places]
                found.append(Call(len(found), group, turn, places, *kept, samples, first))
        return found

    def load_plan(self) -> "LoadPlan":
        """The checked arguments of `load`; reads no weight.

        A cell whose drafter needs no draft model ignores `draft`, its adapter and its quantization.
        Raises a `BassError` for parts that do not match.
        """
        from bass.api.plan import LoadPlan

        options = {f.name: getattr(self, f.name) for f in fields(ModelOptions)}
        options["drafter"] = make("drafter", options["drafter"])
        if not options["drafter"].needs_draft:
            options |= {"draft": None, "draft_lora": None, "draft_quantization": None}
        return LoadPlan.of(LoadOptions(**options, max_batch_size=self.batch))


@final
@dataclass(frozen=True)
class Call:
    """One generation of a repeat.

    number: from 0. group: equal for the turns of the same conversations. places: of each entry, its
    index in the group. prompts: of each entry, its number among the cell's different prompts.
    samples: of each. first_sample: more than 0 where earlier calls have the same prompt.
    """

    number: int
    group: int
    turn: int
    places: list[int]
    entries: list[Entry]
    prompts: list[int]
    samples: int
    first_sample: int

    def options(self, settings: Settings, repeat: int) -> RequestOptions:
        """Its options. In a later turn each sample has a prompt, which continues its answer."""
        shared = {name: getattr(settings, name) for name in SAMPLING}
        shared |= {"seed": settings.seed + repeat}
        return RequestOptions(num_return_sequences=1 if self.turn else self.samples, **shared)


SETTINGS = {f.name: f for f in fields(Settings)}
DEFAULTS: dict[str, Any] = {name: f.default for name, f in SETTINGS.items()}
SAMPLING = [f.name for f in fields(SamplingParams)]


def typed_setting(name: str, value: Any) -> Any:
    """A value in the type of the setting. Raises `OptionError`; strategies are checked later."""
    if name not in SETTINGS:
        elsewhere = named_elsewhere(name, help_of(Settings), "setting")
        raise elsewhere or unknown_name("setting", name, SETTINGS)
    if name in STRATEGIES or name == "family":
        return value
    hint: Any = for_one_prompt(SETTINGS[name].type)
    if value is None and DEFAULTS[name] is not None:
        raise wrong_type(f"{name}: null", hint)
    return option_value(f"{name}: {value!r:.60}", value, hint)


def overlaid(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with overrides, in which `policy.k` is the parameter `k` of the policy.

    Raises `OptionError` for an unknown one, and for a value of a wrong type.
    """
    result = dict(settings)
    for key in sorted(overrides, key=lambda key: key.count(".")):  # a strategy before its parameter
        name, *path = key.split(".")
        if not path:
            result[name] = typed_setting(name, overrides[key])
        elif name in STRATEGIES:
            result[name] = _with_parameter(key, result[name], path, overrides[key])
        else:
            raise OptionError(f"`{key}` is no parameter of a strategy: `{name}` is none.")
    return result


def _with_parameter(key: str, spec: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """The spec of a strategy with a parameter, which may be one of a strategy within it."""
    if spec is None or spec == "auto":
        name = key.partition(".")[0]
        raise OptionError(f"`{key}` is a parameter without a strategy: name one with `{name}`.")
    whole = dict(spec) if isinstance(spec, Mapping) else {"class_path": spec}
    given, (name, *rest) = dict(whole.get("init_args") or {}), path
    given[name] = _with_parameter(key, given.get(name), rest, value) if rest else value
    return whole | {"init_args": given}
