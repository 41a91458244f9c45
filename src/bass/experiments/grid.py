"""From a config to a plan: a base run, and axes along which it is varied.

name: lengths                     # of the run's folder; by default that of the file
about: one sentence
base: {temperature: 0.8, policy: bass, policy.start: 4}   # of every cell, see `Settings`
axes:                             # cells are all combinations; an axis is a list of values,
  batch: [1, 8]                   # or a mapping from labels to values; one of any other name
  method: {pad: {cache: padded}, split: {cache: split}}   # maps labels to several settings
exclude: [{batch: 1, method: split}]    # combinations to leave out
quick: {base: {max_new_tokens: 16}, axes: {batch: [1]}}   # overrides of `--quick`
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, final

import yaml

from bass.api.loading import Checkpoint
from bass.api.options import STRATEGIES, overlaid
from bass.errors import BassError, OptionError, ProblemsError, RequestError, counted, unknown_name
from bass.experiments.cell import Cell
from bass.experiments.prompts import longest_prompts, plain_turns
from bass.experiments.settings import CONFIGS, DEFAULTS, SETTINGS, Settings, typed_setting
from bass.files import reason
from bass.option import check_value

KEYS = ("name", "about", "base", "axes", "exclude", "quick")
_EMPTY: dict[str, Any] = {"base": {}, "axes": {}, "exclude": []}
_SHORT = {"batch": "b", "temperature": "t", "seed": "s", "max_new_tokens": "n", "top_p": "p"}
_OF_PROMPTS = (
    "prompts", "data", "categories", "num_prompts", "max_new_tokens", "lengths", "skip_long",
)  # fmt: skip
Axes = dict[str, dict[Any, dict[str, Any]]]  # the settings of each label


@final
@dataclass(frozen=True)
class Plan:
    """What an ablation runs. remarks: sentences on the prompts of its cells."""

    name: str
    about: str
    axes: list[str]
    cells: list[Cell]
    config: dict[str, Any]
    remarks: list[str]


def as_json(value: Any) -> Any:
    """A value of a config as JSON."""
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    if value is None or isinstance(value, str | int | float):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # an object, such as a strategy


def digest(value: Any) -> str:
    """Hash of a value of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def changed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the defaults, as JSON."""
    values = {name: as_json(getattr(settings, name)) for name in SETTINGS}
    return {name: value for name, value in values.items() if value != as_json(DEFAULTS[name])}


def identity(settings: Settings) -> str:
    """Hash of the settings that identify a cell: all but its repeats, since more continue it."""
    return digest(changed_settings(replace(settings, repeats=DEFAULTS["repeats"])))


def read_config(
    name: str, overrides: Mapping[str, Any] = {}, quick: bool = False
) -> dict[str, Any]:
    """The config in a YAML file, or the packaged config of this name, with overrides.

    overrides: such as {"base.policy.k": 3, "axes.batch": [1, 2]}; None removes an axis. quick:
    whether to apply its `quick` part. Raises `OptionError`.
    """
    path = CONFIGS.get(name, Path(name))
    if not path.suffix and not path.exists() and "/" not in name:
        raise unknown_name("config", name, [*CONFIGS, *map(str, Path().glob("*.yaml"))])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        raw: dict[str, Any] = {"name": path.stem} | dict(content)
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise OptionError(
            f"`{name}` is no config ({reason(error)}): give a YAML file, or one of "
            f"{', '.join(CONFIGS)}."
        ) from error
    faster = raw.pop("quick", None) or {}
    if quick:
        if not faster:
            raise OptionError(f"`{name}` has no `quick` part: leave `--quick` out, or add it.")
        raw |= {part: faster[part] for part in faster if part not in ("base", "axes")}
        for part in ("base", "axes"):
            given = (faster.get(part) or {}).items()
            overrides = {f"{part}.{key}": value for key, value in given} | dict(overrides)
    for key in sorted(overrides, key=lambda key: key.startswith("base.")):  # axes first
        _override(raw, key, overrides[key])
    return raw


def _override(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set one value of a config, in place of its key and of the parameters below it."""
    part, _, key = path.partition(".")
    whole, axes = dict(raw.get(part) or {}), raw.get("axes") or {}
    if part == "axes" and value is None:
        if whole.pop(key, None) is None:
            raise unknown_name("axis", key, axes)
    elif part == "base" and (axis := _axis_that_sets(axes, key)) is not None:
        raise OptionError(
            f"`{key}` is set by the axis `{axis}` in every cell: give another axis "
            f"(`--axes.{axis}`), or remove it (`--axes.{axis} null`)."
        )
    else:
        whole = {k: v for k, v in whole.items() if not k.startswith(f"{key}.")} | {key: value}
    raw[part] = whole


def _axis_that_sets(axes: Mapping[str, Any], key: str) -> str | None:
    """An axis that sets a setting, or the strategy of a parameter, in every cell."""
    keys = {key, _head(key)}
    for axis, values in axes.items():
        overlays = _axis(axis, values).values()
        if overlays and all(keys & {*overlay} for overlay in overlays):
            return axis
    return None


def plan(raw: Mapping[str, Any]) -> Plan:
    """All cells of a config, checked without loading weights.

    Raises a `BassError`: a `ProblemsError` with all problems, unless a problem hides the others.
    """
    problems: list[str] = []
    for key in raw:
        if key not in KEYS:
            more = f" Settings are in `base`: write `base: {{{key}: ...}}`."
            more = more if key in SETTINGS else ""
            problems.append(f"{unknown_name('key', str(key), KEYS)}{more}")
    name, about = str(raw.get("name")), str(raw.get("about") or "")
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        problems.append(f"`name: {name}` must be of letters, digits and `._+-`: it names a folder.")
    parts = {part: raw.get(part) or empty for part, empty in _EMPTY.items()}
    for part, found in parts.items():
        if not isinstance(found, type(_EMPTY[part])):
            form = "a mapping" if part in ("base", "axes") else "a list, such as [{batch: 1}]"
            problems.append(f"`{part}: {found!r:.60}` must be {form}.")
            parts[part] = _EMPTY[part]
    given, varied, excluded = parts.values()
    base, axes = _settled(DEFAULTS, given, problems), dict[str, dict[Any, dict[str, Any]]]()
    for key, values in varied.items():
        with _noted(problems):
            axes[key] = _axis(key, values)
    for key in given:
        if "." in key and (axis := _axis_that_sets(varied, key)) not in (None, key):
            problems.append(f"`base.{key}` has no effect, since the axis `{axis}` replaces it.")
    keys = {axis: {k for one in labels.values() for k in one} for axis, labels in axes.items()}
    for one, other in itertools.combinations(axes, 2):
        for key in keys[one] & keys[other]:
            problems.append(f"The axes `{one}` and `{other}` both set `{key}`: take one out.")
    grid, out, chosen = [[(key, label) for label in axes[key]] for key in axes], [], []
    for one in excluded:
        with _noted(problems):
            out.append(_labels(one, axes))
    for choice in map(dict, itertools.product(*grid)):
        if not any(all(choice[key] in labels for key, labels in one.items()) for one in out):
            chosen.append(choice)
    if not (chosen or problems):
        problems.append("Nothing is left to run: `exclude` leaves out every cell.")
    cells, remarks = _cells(base, axes, chosen, problems), []
    with _noted(problems):
        cells, remarks = fitting(cells)
    if problems:
        raise ProblemsError(f"The config has {counted(len(problems), 'problem')}:", problems)
    config = {key: as_json(raw[key]) for key in KEYS if raw.get(key)}
    return Plan(name, about, [*axes], cells, config, remarks)


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Add a `BassError` raised within to the problems."""
    try:
        yield
    except BassError as error:
        problems.append(str(error))


def _settled(
    base: Mapping[str, Any], overrides: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """The settings with the overrides, and a problem for each invalid one."""
    values = dict(base)
    for key in sorted(overrides, key=lambda key: key.count(".")):  # a strategy before its parameter
        with _noted(problems):
            name, value = _head(key), overrides[key]
            found = overlaid(values, {key: typed_setting(key, value) if name == key else value})
            check_value(SETTINGS[name], found[name])
            values = found
    return values


def _head(key: str) -> str:
    return key.partition(".")[0]


def label_of(value: Any) -> Any:
    """A short name for the value of a setting: `fixed(k=4)` for a strategy with parameters."""
    if isinstance(value, Mapping) and "class_path" in value:
        given = (value.get("init_args") or {}).items()
        inside = ", ".join(f"{name}={label_of(one)}" for name, one in given)
        return f"{label_of(value['class_path'])}{inside and f'({inside})'}"
    if isinstance(value, type) or (isinstance(value, str) and re.fullmatch(r"[\w.]+:\w+", value)):
        return str(as_json(value)).rpartition(":")[2]  # a class of the user's
    if isinstance(value, str | int | float):
        return value
    return "null" if value is None else str(as_json(value))


def _axis(key: str, values: Any) -> dict[Any, dict[str, Any]]:
    """The settings of each label of an axis."""
    own = _head(key) in SETTINGS
    if isinstance(values, list):
        if not own:
            known = unknown_name("axis of a setting", key, SETTINGS)
            raise OptionError(f"{known} Another axis maps labels to settings.")
        values = {label_of(value): value for value in values}
    labels = values if isinstance(values, Mapping) else {}
    found: dict[Any, Any] = {label: {key: one} if own else one for label, one in labels.items()}
    if not found or not all(isinstance(one, Mapping) for one in found.values()):
        form = "a list, or a mapping from labels" + ("" if own else " to mappings of settings")
        raise OptionError(f"`axes.{key}: {values!r:.60}` must be {form}.")
    return found


def _labels(one: Mapping[str, Any], axes: Axes) -> dict[str, list[Any]]:
    """The labels of each axis that an entry of `exclude` names."""
    found = {}
    for axis, given in one.items():
        found[axis] = [label_of(value) for value in (given if isinstance(given, list) else [given])]
        if axis not in axes:
            raise unknown_name("axis", axis, axes)
        for label in found[axis]:
            if label not in axes[axis]:
                raise unknown_name(f"value of the axis `{axis}`", str(label), map(str, axes[axis]))
    return found


def _cells(
    base: Mapping[str, Any], axes: Axes, chosen: Iterable[dict[str, Any]], problems: list[str]
) -> list[Cell]:
    """The cells of these labels, with defaults for invalid settings; each problem is added once."""
    cells: dict[str, Cell] = {}
    wrong: dict[str, list[str]] = {}
    for labels in chosen:
        overlay = {k: v for key, label in labels.items() for k, v in axes[key][label].items()}
        names = {k: _SHORT.get(k, k.rpartition(".")[2]) for k in labels}
        parts = [f"{'' if isinstance(v, str) else names[k]}{v}" for k, v in labels.items()]
        slug = re.sub(r"[^A-Za-z0-9._+]+", "-", "-".join(parts)).strip("-.")[:60] or "base"
        own: list[str] = []
        settings = Settings(**_settled(base, overlay, own))
        cell = Cell(f"{slug}-{identity(settings)[:6]}", labels, settings)
        with _noted(own):
            settings.check_queue()
            if settings.queue is not None and settings.samples is not None:
                own.append("A `queue` has one sample of each request: leave `samples` out.")
        for part, own_names in (("settings.entries", _OF_PROMPTS), ("load_plan", STRATEGIES)):
            try:
                attrgetter(part)(cell)
            except BassError as error:
                own.append(str(error))
                defaults = {name: DEFAULTS[name] for name in own_names}
                cell = replace(cell, settings=replace(cell.settings, **defaults))
        with suppress(BassError):  # else it is not known which checkpoints it reads
            _ = cell.load_plan
            cells[cell.id] = cell
        for sentence in own:
            wrong.setdefault(sentence, []).append(slug)
    for sentence, ids in wrong.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        problems.append(f"{sentence} (cell {ids[0]}{more})")
    return [*cells.values()]


def fitting(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells without the prompts that `skip_long` leaves out, and remarks.

    Cells of the same prompts leave out the same ones. Raises for checkpoints that are missing or do
    not match, and for prompts that do not fit.
    """
    pairs: dict[Any, list[Checkpoint]] = {}
    checked: dict[Any, list[int]] = {}
    long: dict[str, set[int]] = {}
    remarks: dict[str, None] = {}
    keys = [repr([getattr(cell.settings, name) for name in _OF_PROMPTS]) for cell in cells]
    for cell, prompts in zip(cells, keys, strict=True):
        plan = cell.load_plan
        pair = (*plan.models, plan.parts.drafter.needs_draft)
        if pair not in pairs:
            pairs[pair] = plan.check()
        plan.check_decoders([one.index.decoder for one in pairs[pair]])
        if (pair, prompts) not in checked:
            checked[pair, prompts] = _long(cell.settings, pairs[pair], remarks)
            long.setdefault(prompts, set()).update(checked[pair, prompts])
    kept = []
    for cell, prompts in zip(cells, keys, strict=True):
        entries = cell.settings.entries
        if out := long[prompts]:
            count = f"{len(out)} of {len(entries)} prompts are left out"
            remarks[f"{count}: they do not fit the context next to the new tokens."] = None
            left = [one for i, one in enumerate(entries) if i not in out]
            cell = replace(cell, settings=replace(cell.settings, prompts=left))
        kept.append(cell)
    return kept, [*remarks]


def _long(settings: Settings, pair: list[Checkpoint], remarks: dict[str, None]) -> list[int]:
    """The prompts that are too long for the context. Raises `RequestError` unless they may be."""
    entries, new, tokenizer = settings.entries, settings.longest, pair[0].tokenizer
    shape = pair[0].index.decoder.shape
    context = shape.max_positions
    if settings.num_prompts is not None and len(entries) < settings.num_prompts:
        remarks[f"`num_prompts` is {settings.num_prompts}, and there are {len(entries)}."] = None
    if plain_turns(entries, tokenizer):
        remarks["Conversations are plain text (`User:`), since there is no chat template."] = None
    needed = longest_prompts(tokenizer, shape.vocab_size, entries, new)
    long = [i for i, length in enumerate(needed) if length + new > context]
    if long and not (settings.skip_long and len(long) < len(entries)):
        raise RequestError(
            f"{len(long)} of {len(entries)} prompts do not fit; `skip_long: true` leaves them out. "
            f"The longest has {max(needed)} tokens, {new} new ones follow, and the context is "
            f"{context} tokens."
        )
    return long
