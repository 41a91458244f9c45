"""From a config to a plan: a base run, and axes along which it is varied.

name: lengths                     # of the run's folder; by default that of the file
about: one sentence
base: {temperature: 0.8, policy: bass, policy.start: 4}   # of every cell, see `Settings`
axes:                             # cells are all combinations; an axis is a list of values,
  batch: [1, 8]                   # or a mapping from labels to values; one of any other name
  method: {pad: {cache: padded}, split: {cache: split}}   # maps labels to several settings
points: [{batch: 3, method: pad}]       # further cells, with the base run's other values
exclude: [{batch: 1, method: split}]    # combinations to leave out
quick: {base: {max_new_tokens: 16}, axes: {batch: [1]}}   # overrides of `--quick`
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import yaml

from bass.api.options import ModelOptions
from bass.errors import OptionError, unknown_name
from bass.experiments.cell import Cell
from bass.experiments.checkpoints import fitting
from bass.experiments.settings import CONFIGS, DEFAULTS, SETTINGS, Settings, overlaid
from bass.problems import Problems

KEYS = ("name", "about", "base", "axes", "points", "exclude", "quick")
BASE = "base"  # label of a point on an axis of several settings that it does not name
_SHORT = {"batch": "b", "temperature": "t", "seed": "s", "max_new_tokens": "n", "top_p": "p"}
_OF_MODELS = ("batch", *(f.name for f in fields(ModelOptions)))
_OF_REQUESTS = [name for name in SETTINGS if name not in _OF_MODELS[1:]]
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
        raise unknown_name("config", name, CONFIGS)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        raw: dict[str, Any] = {"name": path.stem} | dict(content)
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise OptionError(
            f"`{name}` is no config ({error}): give a YAML file, or one of {', '.join(CONFIGS)}."
        ) from error
    faster, problems = raw.pop("quick", None) or {}, Problems()
    if quick:
        if not faster:
            raise OptionError(f"`{name}` has no `quick` part: leave `--quick` out, or add it.")
        raw |= {part: faster[part] for part in faster if part not in ("base", "axes")}
        for part in ("base", "axes"):
            given = (faster.get(part) or {}).items()
            overrides = {f"{part}.{key}": value for key, value in given} | dict(overrides)
    for key in sorted(overrides, key=lambda key: key.startswith("base.")):  # axes first
        _override(raw, key, overrides[key], problems)
    problems.raise_any(f"The config `{name}`")
    return raw


def _override(raw: dict[str, Any], path: str, value: Any, problems: Problems) -> None:
    """Set one value of a config, in place of its key and of the parameters below it."""
    part, _, key = path.partition(".")
    whole, axes = dict(raw.get(part) or {}), raw.get("axes") or {}
    if part == "axes" and value is None:
        if whole.pop(key, None) is None:
            problems.add(_unknown(key, "axes", axes))
    elif part == "base" and (axis := _axis_that_sets(axes, key)) is not None:
        problems.add(
            f"`{key}` is set by the axis `{axis}` in every cell: give another axis "
            f"(`--axes.{axis}`), or remove it (`--axes.{axis} null`)."
        )
    else:
        whole = {k: v for k, v in whole.items() if not k.startswith(f"{key}.")} | {key: value}
    raw[part] = whole


def _axis_that_sets(axes: Mapping[str, Any], key: str) -> str | None:
    """An axis that sets a setting, or the strategy of a parameter, in every cell."""
    keys = {key, key.partition(".")[0]}
    for axis, values in axes.items():
        own = axis.partition(".")[0] in SETTINGS or not isinstance(values, Mapping)
        overlays = [{axis}] if own else [{*(one or ())} for one in values.values()]
        if overlays and all(keys & overlay for overlay in overlays):
            return axis
    return None


def plan(raw: Mapping[str, Any]) -> Plan:
    """All cells of a config, checked without loading weights.

    Raises `OptionError` for one problem, and `ProblemsError` for several.
    """
    problems = Problems()
    for key in (str(key) for key in raw if key not in KEYS):
        more = f" Settings are in `base`: write `base: {{{key}: ...}}`." if key in SETTINGS else ""
        problems.add(f"{unknown_name('key', key, KEYS)}{more}")
    name, about = str(raw.get("name")), str(raw.get("about") or "")
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        problems.add(f"`name: {name}` must be of letters, digits and `._+-`: it names a folder.")
    given, varied, points, excluded = (
        _part(raw, part, empty, problems)
        for part, empty in (("base", {}), ("axes", {}), ("points", []), ("exclude", []))
    )
    base = _settled(DEFAULTS, given, "base", problems)
    axes = {str(key): _axis(str(key), values, base, problems) for key, values in varied.items()}
    axes |= {k: {} for one in points for k in one if _head(k) in SETTINGS and k not in axes}
    for key in given if not points else ():
        if "." in str(key) and (axis := _axis_that_sets(axes, key)) not in (None, key):
            problems.add(f"`base.{key}` has no effect, since the axis `{axis}` replaces it.")
    keys = {axis: {k for one in labels.values() for k in one} for axis, labels in axes.items()}
    for one, other in itertools.combinations(axes, 2):
        for key in sorted(keys[one] & keys[other]):
            problems.add(f"The axes `{one}` and `{other}` both set `{key}`: take one out.")
    drafts = []
    grid = {key: labels for key, labels in axes.items() if labels}
    out = [{key: _named(key, one[key], axes, problems) for key in one} for one in excluded]
    for choice in itertools.product(*grid.values()) if varied or not points else ():
        chosen = dict(zip(grid, choice, strict=True))
        if not any(all(chosen.get(key) in labels for key, labels in one.items()) for one in out):
            overlay = {k: v for key in chosen for k, v in axes[key][chosen[key]].items()}
            drafts.append(({key: chosen.get(key, _base_label(key, base)) for key in axes}, overlay))
    drafts += [_point(point, axes, base, problems) for point in points]
    if not drafts:
        problems.add("Nothing is left to run: `exclude` leaves out every cell.")
    cells, remarks = fitting(_cells(base, drafts, problems), problems)
    problems.raise_any(f"The config `{name}`")
    config = {key: as_json(raw[key]) for key in KEYS if raw.get(key)}
    return Plan(name, about, [*axes], cells, config, remarks)


def _head(key: str) -> str:
    return str(key).partition(".")[0]


def _unknown(name: Any, where: str, known: Iterable[Any]) -> str:
    return f"In `{where}`: {unknown_name('name', str(name), map(str, known))}"


def _part(raw: Mapping[str, Any], part: str, empty: Any, problems: Problems) -> Any:
    """A part of a config: a mapping, or a list of mappings, like `empty`."""
    found = raw.get(part) or empty
    listed = isinstance(empty, list)
    if isinstance(found, type(empty)) and all(isinstance(x, dict) for x in found if listed):
        return found
    form = "a list of mappings, such as [{batch: 1}]" if listed else "a mapping"
    problems.add(f"`{part}: {found!r:.60}` must be {form}.")
    return empty


def _settled(
    base: Mapping[str, Any], overrides: Mapping[Any, Any], where: str, problems: Problems
) -> dict[str, Any]:
    """The settings with the overrides, and a problem for each invalid one."""
    result = dict(base)
    for key in sorted(overrides, key=lambda key: str(key).count(".")):
        with problems.noted(where):
            result = overlaid(result, {str(key): overrides[key]})
    return result


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


def _axis(key: str, values: Any, base: Mapping[str, Any], problems: Problems) -> dict[Any, Any]:
    """The settings of each label of an axis. Parameters of strategies are checked cell by cell."""
    own, where = _head(key) in SETTINGS, f"axes.{key}"
    if not values or not isinstance(values, list | Mapping):
        problems.add(f"`{where}: {values!r:.60}` must be a list, or a mapping from labels.")
        return {}
    if isinstance(values, list) and not own:
        problems.add(f"{_unknown(key, 'axes', SETTINGS)} Another axis maps labels to settings.")
        return {}
    overlays: dict[Any, dict[str, Any]] = {}
    for label, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        overlay = {key: value} if own else value
        if not isinstance(overlay, Mapping):
            problems.add(f"`{where}.{label}: {value!r:.60}` must be a mapping of settings.")
            continue
        whole = {k: v for k, v in overlay.items() if "." not in str(k)}
        settled = _settled(base, whole, where, problems)
        overlay = {k: settled.get(k, v) if k in whole else v for k, v in overlay.items()}
        label = label if isinstance(values, Mapping) else label_of(overlay[key])
        overlays[label] = {k: v for k, v in overlay.items() if _head(k) in SETTINGS}
    return overlays


def _named(axis: str, given: Any, axes: Axes, problems: Problems) -> list[Any]:
    """The labels of an axis that an entry of `exclude` names."""
    labels = [label_of(one) for one in (given if isinstance(given, list) else [given])]
    if axis not in axes:
        problems.add(_unknown(axis, "exclude", axes))
    unknown = [label for label in labels if axes.get(axis) and label not in axes[axis]]
    problems.sentences += [_unknown(label, f"exclude.{axis}", axes[axis]) for label in unknown]
    return labels


def _point(
    point: Mapping[str, Any], axes: Axes, base: Mapping[str, Any], problems: Problems
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The labels and the settings of a point."""
    labels, overlay = {key: _base_label(key, base) for key in axes}, {}
    for key, value in point.items():
        label = label_of(value)
        if label in axes.get(key, {}):
            overlay |= axes[key][label]
        elif _head(key) in SETTINGS:
            overlay[key] = value
        else:
            known = axes.get(key) or [*axes, *SETTINGS]
            problems.add(_unknown(label if key in axes else key, "points", known))
        labels |= {key: label} if key in axes else {}
    return labels, overlay


def _base_label(key: str, base: Mapping[str, Any]) -> Any:
    """The label of the base run on an axis."""
    name, *path = key.split(".")
    value = base.get(name, BASE)
    for part in path:
        given = value.get("init_args") if isinstance(value, Mapping) else None
        value = (given or {}).get(part, BASE)
    return label_of(value)


def _cells(base: Mapping[str, Any], drafts: Iterable[Any], problems: Problems) -> list[Cell]:
    """The cells, with defaults for invalid values; each problem is reported once."""
    cells: dict[str, Cell] = {}
    wrong: dict[str, list[str]] = {}
    known: dict[str, dict[str, str]] = {}  # problems by the settings that they depend on
    for labels, overlay in drafts:
        names = {k: _SHORT.get(k, k.rpartition(".")[2]) for k in labels}
        parts = [f"{'' if isinstance(v, str) else names[k]}{v}" for k, v in labels.items()]
        slug = re.sub(r"[^A-Za-z0-9._+]+", "-", "-".join(parts))
        own, invalid = Problems(), set[str]()
        settings = Settings(**_settled(base, overlay, "", own))
        id_ = f"{slug.strip('-.')[:60] or BASE}-{identity(settings)[:6]}"
        checks = ((_OF_REQUESTS, settings.problems), (_OF_MODELS, settings.problems_of_models))
        for of, check in checks:
            key = repr([(name, getattr(settings, name)) for name in of])
            known[key] = known[key] if key in known else check()
            own.sentences += known[key]
            invalid |= {*known[key].values()}
        for sentence in dict.fromkeys(own.sentences):
            wrong.setdefault(sentence, []).append(id_)
        if invalid.isdisjoint(("", "policy", "drafter")):  # else its pair is not known
            valid = replace(settings, **{name: DEFAULTS[name] for name in invalid})
            cells[id_] = Cell(id_, labels, valid)
    for sentence, ids in wrong.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        problems.add(f"{sentence} (cell {ids[0]}{more})")
    return [*cells.values()]
