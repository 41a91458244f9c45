"""From a config to a plan: a base run, and axes along which it is varied.

    name: lengths                     # of the run's folder
    about: one sentence
    # settings of every cell, see `Settings`; a parameter as `policy.start: 4`
    base: {temperature: 0.8, policy: bass}
    axes:                             # cells are all combinations; an axis is a list of values,
      batch: [1, 8]                   # or a mapping from labels to values
      policy.increment: [1, 2]
      # any other name: labels for several settings at once
      method: {pad: {cache: padded}, split: {cache: split}}
    # cells next to the grid; what a point does not say is the base run's
    points: [{batch: 3, method: pad}]
    exclude: [{batch: 1, method: split}]              # combinations to leave out
    # what `--quick` puts over all that
    quick: {base: {max_new_tokens: 16}, axes: {batch: [1]}}

Whatever is wrong is told at once, before anything runs.
"""

import contextlib
import copy
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import yaml

from bass.errors import OptionError, unknown_name
from bass.experiments.orders import Orders
from bass.experiments.problems import Problems
from bass.experiments.raw import endless, mapping, mappings, named, unknown
from bass.experiments.settings import DEFAULTS, SETTINGS, Settings, anchored, overlaid
from bass.experiments.strategies import called
from bass.files import read_text
from bass.plain_yaml import LARGEST_YAML, read_yaml

KEYS = ("name", "about", "base", "axes", "points", "exclude", "quick")
# in the names of cells
_SHORT = {"batch": "b", "temperature": "t", "seed": "s", "max_new_tokens": "n", "top_p": "p"}
BASE = "base"  # the label of a point that names no value of an axis with labels of its own
MOST_CELLS, MOST_AXES = 10_000, 100
_MOST_LOOKED_AT = 100  # values of an axis, where there are too many cells


@final
@dataclass(frozen=True)
class Cell:
    """One run of the plan. `labels`: its value on each axis; `settings`: everything, by name."""

    id: str
    labels: dict[str, Any]
    settings: Settings


@final
@dataclass(frozen=True)
class Repaired:
    """A cell that cannot be, put right as far as its checkpoints can be looked at.

    `replaced`: settings that have their defaults.
    """

    settings: Settings
    replaced: frozenset[str]


@final
@dataclass(frozen=True)
class Plan:
    """What an ablation will run.

    `config`: what it was made of, from which `plan` makes it again. `repaired`: cells left out.
    """

    name: str
    about: str
    axes: list[str]
    cells: list[Cell]
    config: dict[str, Any]
    repaired: list[Repaired] = field(default_factory=list, repr=False, compare=False)
    orders: Orders = field(default_factory=Orders, repr=False, compare=False)


def shipped() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    folder = Path(str(files("bass.experiments").joinpath("configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_config(name: str) -> dict[str, Any]:
    """What a YAML file says, or the shipped config of this name."""
    path = shipped().get(name, Path(name))
    if not path.exists() and not name.endswith((".yaml", ".yml")) and "/" not in name:
        raise unknown_name("config", name, shipped())
    try:
        said = read_yaml(read_text(path, LARGEST_YAML))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"`{name}` cannot be read ({reason}): give a YAML file, or one of "
            f"{', '.join(shipped())}."
        ) from error
    except yaml.YAMLError as error:
        raise OptionError(
            f"`{name}` is not YAML ({error}): see docs/ablations.md for the form of a config."
        ) from error
    if not isinstance(said, dict):
        raise OptionError(
            f"`{name}` holds {said!r:.60}, which is no config: give `base`, `axes` or `points`."
        )
    return {"name": path.stem} | said


def with_overrides(
    raw: Mapping[str, Any],
    quick: bool,
    overrides: Sequence[tuple[str, Any]],
    problems: Problems | None = None,
) -> dict[str, Any]:
    """The config with its `quick` part over it where that is asked for, and over both what the
    command line says.

    overrides: ("base.policy.k", 3), or ("axes.batch", [1, 2]); an axis that is null is no axis any
    more. problems: takes what is wrong; without it that is raised.
    """
    result = copy.deepcopy(dict(raw))
    faster = result.pop("quick", None) or {}
    given, problems = problems, problems or Problems()
    if quick and not faster:
        problems.told.append("The config has no `quick` part: leave `--quick` out, or add it.")
    if not isinstance(faster, Mapping):
        problems.told.append(
            f"`quick: {faster!r:.60}` must be a mapping: give `base` or `axes` in it."
        )
        faster = {}
    problems.told += [
        unknown(f"quick.{key}", key, ("base", "axes", "points", "exclude"))
        for key in faster
        if key not in KEYS[2:6]
    ]
    layers = [
        (f"{part}.{key}", value)
        for part in ("base", "axes")
        for key, value in mapping(faster, part, problems).items()
    ]
    if quick:
        result |= {part: faster[part] for part in ("points", "exclude") if part in faster}
    # an axis that is taken out overrides nothing
    ordered = sorted(overrides, key=lambda one: not one[0].startswith("axes."))
    for path, value in [*(layers if quick else ()), *ordered]:
        part, _, key = path.partition(".")
        whole = result.get(part) or {}
        if not isinstance(whole, Mapping):  # which is told when the plan is made
            continue
        # as options are written
        key = next((k for k in whole if part == "axes" and str(k).replace("-", "_") == key), key)
        kept = {
            k: v
            for k, v in whole.items()
            if k != key and not (part == "base" and str(k).startswith(f"{key}."))
        }
        if part == "base" and (axis := _axis_that_sets(result, key)) is not None:
            if axis in (key, key.partition(".")[0]):
                problems.told.append(
                    f"`{key}` is an axis of the config, and would be overridden by it: give "
                    f"`--axes.{key} [{value}]`."
                )
            else:
                problems.told.append(
                    f"`{key}` is said by every label of the axis `{axis}`: take the axis out "
                    f"(`--axes.{axis} null`)."
                )
        gone = part == "axes" and value is None
        if gone and key not in whole:
            problems.told.append(unknown(f"axes.{key}", key, whole))
        result[part] = {
            k: value if k == key else v
            for k, v in whole.items()
            if k in kept or (k == key and not gone)
        }
        result[part] |= {} if gone else {key: value}
    if given is None:
        problems.raise_any("The command line")
    return result


def plan(raw: Mapping[str, Any]) -> Plan:
    """All cells of a config, each found to be possible as far as can be seen without loading
    anything.
    """
    made, problems = examined(raw)
    problems.raise_any(f"The config `{made.name}`")
    return made


def examined(raw: Mapping[str, Any], problems: Problems | None = None) -> tuple[Plan, Problems]:
    """The cells of a config that are possible, and all that is wrong with the others, beside the
    problems that are given.
    """
    problems = problems or Problems()
    problems.told += [unknown(key, key, KEYS) for key in raw if key not in KEYS]
    name, about = raw.get("name"), raw.get("about") or ""
    if not (isinstance(name, str) and re.fullmatch(r"[\w+-][\w.+-]*", name)):
        problems.told.append(
            f"`name: {name!r:.60}` must be a text of letters, digits and `._+-`: it names the "
            "run's folder."
        )
    if not isinstance(about, str):
        problems.told.append(f"`about: {about!r:.60}` must be a text.")
    problems.told += [
        f"`{where}` must be a finite number."
        for part in KEYS
        for where in endless(raw.get(part), part)
    ]
    base = _settled(dict(DEFAULTS), mapping(raw, "base", problems), "base", problems)
    base = _anchored(base, problems)
    varied, large = _varied(raw, problems)
    points = [dict(point) for point in mappings(raw, "points", problems)]
    if (count := len({*varied, *(key for point in points for key in point)})) > MOST_AXES:
        raise OptionError(
            f"The config `{name}` has {count} axes, and {MOST_AXES} are the most: make several "
            "configs of it."
        )
    axes = {key: _axis(key, values, base, problems) for key, values in varied.items()}
    for key in dict.fromkeys(key for point in points for key in point):
        axes.setdefault(key, {})
    _refuse_overlap(axes, problems)
    if not points:  # which have the base run's value where they name none
        _refuse_lost(mapping(raw, "base", problems), axes, problems)
    excluded = [] if large else _exclusions(mappings(raw, "exclude", problems), axes, problems)
    grid = [] if points and not varied else _grid({k: v for k, v in axes.items() if v})
    drafts: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for said in itertools.islice(grid, 1) if large else grid:
        labels = {key: said[key] if key in said else _base_label(key, base) for key in axes}
        if not any(all(labels[key] in allowed for key, allowed in out.items()) for out in excluded):
            drafts.append((labels, {k: v for key in said for k, v in axes[key][said[key]].items()}))
    for i, point in enumerate(points):
        drafts.append(_point(i, point, axes, base, problems))
    orders = Orders()
    cells, repaired = _cells(base, drafts, problems, orders)
    if not drafts and not problems.told:
        problems.told.append("Nothing is left to run: `exclude` leaves out every cell.")
    config = {"name": name, "about": about, "base": asdict(Settings(**base))}
    config |= {part: raw[part] for part in ("axes", "points", "exclude") if raw.get(part)}
    return Plan(str(name), str(about), list(axes), cells, config, repaired, orders), problems


def _varied(raw: Mapping[str, Any], problems: Problems) -> tuple[dict[str, Any], bool]:
    """The axes, and whether they have too many cells: then only the first values of each are looked
    at.
    """
    axes = mapping(raw, "axes", problems)
    count = math.prod(
        len(values) for values in axes.values() if isinstance(values, list | Mapping) and values
    )
    if count <= MOST_CELLS:
        return axes, False
    told = (
        f"The grid of `{raw.get('name')}` has {count} cells, and {MOST_CELLS} are the most: make "
        "several configs of it."
    )
    problems.told.append(told)

    def first(values: Any) -> Any:
        if isinstance(values, Mapping):
            return dict(itertools.islice(values.items(), _MOST_LOOKED_AT))
        return values[:_MOST_LOOKED_AT] if isinstance(values, list) else values

    return {key: first(values) for key, values in axes.items()}, True


def _axis(
    key: str, values: Any, base: dict[str, Any], problems: Problems
) -> dict[Any, dict[str, Any]]:
    """The settings for each label of an axis."""
    own = key.partition(".")[0] in SETTINGS
    if isinstance(values, Mapping) and values:
        labelled = dict(values.items())
        odd = [
            label for label in labelled if not isinstance(label, str | int | float | bool | None)
        ]
        problems.told += [
            f"`axes.{key}` has the label {label!r:.60}: give a text or a number." for label in odd
        ]
    elif isinstance(values, list) and values and own:
        labelled = {called(value): value for value in values}
        if len(labelled) < len(values):
            problems.told.append(
                f"The axis `{key}` has two values of one name: leave one out, or give a mapping "
                "from labels to values."
            )
    elif isinstance(values, list) and values:
        problems.told.append(
            unknown(f"axes.{key}", key, SETTINGS)
            + " An axis of another name maps labels to settings."
        )
        return {}
    else:
        problems.told.append(
            f"The axis `{key}: {values!r:.60}` has no values: give a list, or a mapping from "
            "labels to values."
        )
        return {}
    overlays = {label: {key: value} if own else named(value) for label, value in labelled.items()}
    for label, overlay in overlays.items():
        if not isinstance(overlay, Mapping):
            problems.told.append(
                f"`axes.{key}.{label}: {overlay!r:.60}` must be a mapping of settings, since "
                f"`{key}` is none itself."
            )
            overlays[label] = {}
        else:  # parameters depend on other axes, and are looked at cell by cell
            whole = {k: v for k, v in overlay.items() if "." not in k}
            settled = _anchored(_settled(base, whole, f"axes.{key}", problems), problems)
            overlays[label] = {
                k: settled[k] if k in whole else v
                for k, v in overlay.items()
                if k in settled or "." in k
            }
    return overlays


def _point(
    i: int,
    point: Mapping[str, Any],
    axes: Mapping[str, Any],
    base: dict[str, Any],
    problems: Problems,
) -> Any:
    """Labels and settings of an explicit cell."""
    labels = {key: _base_label(key, base) for key in axes}
    overlay: dict[str, Any] = {}
    for key, value in point.items():
        label = called(value)
        if label in axes.get(key, {}):
            overlay |= axes[key][label]
        elif key.partition(".")[0] in SETTINGS:
            overlay[key] = value
        else:
            problems.told.append(unknown(f"points.{i}.{key}", label, axes.get(key) or SETTINGS))
        labels[key] = label
    settled = _settled(
        base, {k: v for k, v in overlay.items() if "." not in k}, f"points.{i}", problems
    )
    return labels, {k: settled.get(k, v) for k, v in overlay.items()}


def _cells(
    base: dict[str, Any],
    drafts: Iterable[tuple[dict[str, Any], dict[str, Any]]],
    problems: Problems,
    orders: Orders,
) -> tuple[list[Cell], list[Repaired]]:
    """The cells that can be, and those that cannot, each problem of which is told once."""
    cells: list[Cell] = []
    repaired: list[Repaired] = []
    wrong: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    whole = not problems.told  # else what is missing may have been left out for another reason
    for i, (labels, overlay) in enumerate(drafts):
        id_ = cell_id(i, labels)
        if (twin := seen.setdefault(repr(labels), id_)) != id_ and whole:
            problems.told.append(f"The cell `{id_}` is the same as `{twin}`: leave one out.")
        own = Problems()
        settings = _examined(base, overlay, orders, own)
        for sentence in dict.fromkeys(own.told):
            wrong.setdefault(sentence, []).append(id_)
        if own.told:
            repaired.append(Repaired(settings, frozenset(own.replaced)))
        else:
            cells.append(Cell(id_, labels, settings))
    for problem, ids in wrong.items():
        problems.told.append(
            f"{problem} (cell {ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''})"
        )
    unused = base["draft"] is not None and all(
        orders.of(cell.settings).draft is None for cell in cells
    )
    if cells and whole and not wrong and unused:
        problems.told.append(
            f"`draft: {base['draft']}` would be used by no cell: leave it out, or give a drafter "
            "that needs a draft model."
        )
    return cells, repaired


def _examined(
    base: dict[str, Any], overlay: Mapping[str, Any], orders: Orders, problems: Problems
) -> Settings:
    """The settings of a cell, those that cannot be replaced by their defaults.

    Nothing is loaded, and no checkpoint looked at.
    """
    settings = Settings(**_settled(base, overlay, "", problems))
    settings.examine(problems)
    settings = settings.with_defaults(problems.replaced)
    told, changed = orders.problems(settings)
    problems.told += told
    problems.replaced |= changed
    return settings.with_defaults(changed)


def cell_id(number: int, labels: Mapping[str, Any]) -> str:
    """`0007-bass-b8`: a name for files and people."""
    parts = [
        f"{_SHORT.get(key, '' if isinstance(label, str) else f'{key}-')}{label}"
        for key, label in labels.items()
    ]
    slug = re.sub(r"[^A-Za-z0-9._+]+", "-", "-".join(parts)).strip("-")[:60].rstrip("-.")
    return f"{number:04d}-{slug}" if slug else f"{number:04d}"


def _grid(axes: Mapping[str, Mapping[Any, Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of labels; the base run alone where there is no axis."""
    for labels in itertools.product(*axes.values()):
        yield dict(zip(axes, labels, strict=True))


def _base_label(key: str, base: Mapping[str, Any]) -> Any:
    """What the base run has on an axis."""
    head, _, rest = key.partition(".")
    value: Any = base.get(head, BASE)
    for part in rest.split(".") if rest else ():
        value = (
            (value.get("init_args") or {}).get(part, BASE) if isinstance(value, Mapping) else BASE
        )
    return called(value)


def _exclusions(
    given: Iterable[Mapping[str, Any]], axes: Mapping[str, Any], problems: Problems
) -> list[dict[str, list[Any]]]:
    found: list[dict[str, list[Any]]] = []
    for one in given:
        wanted = {
            key: [called(v) for v in value] if isinstance(value, list) else [called(value)]
            for key, value in one.items()
        }
        for key, labels in wanted.items():
            known = [str(label) for label in axes.get(key, {})]
            if key not in axes:
                problems.told.append(unknown(f"exclude.{key}", key, axes))
            problems.told += [
                unknown(f"exclude.{key}", str(label), known)
                for label in labels
                if key in axes and str(label) not in known
            ]
        if wanted.keys() <= {*axes}:
            found.append(wanted)
    return found


def _refuse_lost(base: Mapping[str, Any], axes: Mapping[str, Any], problems: Problems) -> None:
    """A parameter in the base run, of a strategy that an axis replaces in every cell, would be said
    to nobody.
    """
    for key in base:
        head, dot, parameter = key.partition(".")
        for axis in (
            axis
            for axis, labels in axes.items()
            if dot and labels and all(head in overlay for overlay in labels.values())
        ):
            problems.told.append(
                f"`base.{key}` would be lost, since the axis `{axis}` names the `{head}` anew: "
                f"give `{parameter}` there."
            )


def _refuse_overlap(
    axes: Mapping[str, Mapping[Any, Mapping[str, Any]]], problems: Problems
) -> None:
    said: dict[str, str] = {}  # by which axis, the first of them
    for axis, labels in axes.items():
        for key in sorted({key for overlay in labels.values() for key in overlay}):
            if (one := said.setdefault(key, axis)) != axis:
                problems.told.append(
                    f"The axes `{one}` and `{axis}` both say `{key}`: take it out of one of them."
                )


def _axis_that_sets(raw: Mapping[str, Any], key: str) -> str | None:
    """An axis of the config that says, in all its cells, what `key` is about."""
    axes, keys = raw.get("axes"), {key, key.partition(".")[0]}
    for axis, values in axes.items() if isinstance(axes, Mapping) else ():
        labelled = (
            list(values.values())
            if isinstance(values, Mapping) and axis.partition(".")[0] not in SETTINGS
            else []
        )
        if axis in keys or (
            labelled and all(isinstance(one, Mapping) and keys & {*one} for one in labelled)
        ):
            return axis
    return None


def _settled(
    base: dict[str, Any], said: Mapping[str, Any], where: str, problems: Problems
) -> dict[str, Any]:
    """The settings with what is said over them, and a problem for each key that cannot be."""
    with contextlib.suppress(OptionError):  # of which there is none in most of thousands of cells
        return overlaid(base, {str(key): value for key, value in said.items()})
    for key in sorted(said, key=lambda key: str(key).count(".")):
        with problems.noted(where, str(key).partition(".")[0]):
            base = overlaid(base, {str(key): said[key]})
    return base


def _anchored(settings: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """With paths that hold anywhere; where prompts cannot be read, that is told once and others
    stand in for them.
    """
    try:
        return anchored(settings)
    except OptionError as error:
        problems.add(str(error), "prompts")
        return anchored(settings | {"prompts": DEFAULTS["prompts"]})
