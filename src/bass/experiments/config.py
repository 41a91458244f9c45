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
    # cells in addition to the grid; a point has the base run's values unless it sets others
    points: [{batch: 3, method: pad}]
    exclude: [{batch: 1, method: split}]              # combinations to leave out
    # overrides of `--quick`
    quick: {base: {max_new_tokens: 16}, axes: {batch: [1]}}

All problems are reported together, before anything runs.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from bass.errors import OptionError
from bass.experiments.config_checks import (
    exclusions,
    refuse_columns,
    refuse_lost,
    refuse_overlap,
)
from bass.experiments.load_plans import LoadPlans
from bass.experiments.raw import endless, mapping, mappings, named, unknown, unknown_part
from bass.problems import Problems
from bass.prompts.published import SETS
from bass.runs.settings import DEFAULTS, SETTINGS, Settings, anchored, overlaid
from bass.runs.words import called

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
    """An invalid cell, repaired so that its checkpoints can be checked.

    `replaced`: settings that have their defaults.
    """

    settings: Settings
    replaced: frozenset[str]


@final
@dataclass(frozen=True)
class Plan:
    """What an ablation will run.

    `config`: its config, from which `plan` makes it again. `repaired`: the invalid cells.
    `remarks`: sentences on what the cells run, of `check_checkpoints`.
    """

    name: str
    about: str
    axes: list[str]
    cells: list[Cell]
    config: dict[str, Any]
    repaired: list[Repaired] = field(default_factory=list, repr=False, compare=False)
    remarks: list[str] = field(default_factory=list, compare=False)
    load_plans: LoadPlans = field(default_factory=LoadPlans, repr=False, compare=False)


def plan(raw: Mapping[str, Any]) -> Plan:
    """All cells of a config, checked without loading anything."""
    made, problems = examined(raw)
    problems.raise_any(f"The config `{made.name}`")
    return made


def examined(raw: Mapping[str, Any], problems: Problems | None = None) -> tuple[Plan, Problems]:
    """The valid cells of a config, and the problems of the others, added to the given problems."""
    problems = problems or Problems()
    problems.sentences += [unknown_part(str(key), KEYS) for key in raw if key not in KEYS]
    name, about = raw.get("name"), raw.get("about") or ""
    if not (isinstance(name, str) and re.fullmatch(r"[\w+-][\w.+-]*", name)):
        problems.sentences.append(
            f"`name: {name!r:.60}` must be a text of letters, digits and `._+-`: it names the "
            "run's folder."
        )
    if not isinstance(about, str):
        problems.sentences.append(f"`about: {about!r:.60}` must be a text.")
    problems.sentences += [
        f"`{where}` must be a finite number."
        for part in KEYS
        for where in endless(raw.get(part), part)
    ]
    base = _settled(dict(DEFAULTS), mapping(raw, "base", problems), "base", problems)
    base = _anchored(base, problems)
    varied, large = _varied(raw, problems)
    points = mappings(raw, "points", problems)
    named_by_points = dict.fromkeys(key for point in points.values() for key in point)
    if (count := len({*varied, *named_by_points})) > MOST_AXES:
        raise OptionError(
            f"The config `{name}` has {count} axes, and {MOST_AXES} are the most: make several "
            "configs of it."
        )
    axes = {key: _axis(key, values, base, problems) for key, values in varied.items()}
    for key in named_by_points:
        if key.partition(".")[0] in SETTINGS:
            axes.setdefault(key, {})
    refuse_overlap(axes, problems)
    refuse_columns(axes, problems)
    if not points:  # points have the base run's value on an axis that they do not name
        refuse_lost(mapping(raw, "base", problems), axes, problems)
    excluded = (
        [] if large else exclusions(mappings(raw, "exclude", problems).values(), axes, problems)
    )
    grid = [] if points and not varied else _grid({k: v for k, v in axes.items() if v})
    drafts: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for choice in itertools.islice(grid, 1) if large else grid:
        labels = {key: choice[key] if key in choice else _base_label(key, base) for key in axes}
        if not any(all(labels[key] in allowed for key, allowed in out.items()) for out in excluded):
            drafts.append(
                (labels, {k: v for key in choice for k, v in axes[key][choice[key]].items()})
            )
    for i, point in points.items():
        drafts.append(_point(i, point, axes, base, problems))
    load_plans = LoadPlans()
    cells, repaired = _cells(base, drafts, problems, load_plans)
    if not drafts and not problems.sentences:
        problems.sentences.append("Nothing is left to run: `exclude` leaves out every cell.")
    config = {"name": name, "about": about, "base": asdict(Settings(**base))}
    config |= {part: raw[part] for part in ("axes", "points", "exclude") if raw.get(part)}
    made = Plan(str(name), str(about), list(axes), cells, config, repaired, load_plans=load_plans)
    return made, problems


def _varied(raw: Mapping[str, Any], problems: Problems) -> tuple[dict[str, Any], bool]:
    """The axes, and whether they have too many cells: then only the first values of each are
    checked.
    """
    axes = mapping(raw, "axes", problems)
    count = math.prod(
        len(values) for values in axes.values() if isinstance(values, list | Mapping) and values
    )
    if count <= MOST_CELLS:
        return axes, False
    message = (
        f"The grid of `{raw.get('name')}` has {count} cells, and {MOST_CELLS} are the most: make "
        "several configs of it."
    )
    problems.sentences.append(message)

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
        problems.sentences += [
            f"`axes.{key}` has the label {label!r:.60}: give a text or a number." for label in odd
        ]
    elif isinstance(values, list) and values and own:
        labelled = {called(value): value for value in values}
        if len(labelled) < len(values):
            problems.sentences.append(
                f"The axis `{key}` has two values of one name: leave one out, or give a mapping "
                "from labels to values."
            )
    elif isinstance(values, list) and values:
        problems.sentences.append(
            unknown(f"axes.{key}", key, SETTINGS)
            + " An axis of another name maps labels to settings."
        )
        return {}
    else:
        problems.sentences.append(
            f"The axis `{key}: {values!r:.60}` has no values: give a list, or a mapping from "
            "labels to values."
        )
        return {}
    overlays = {label: {key: value} if own else named(value) for label, value in labelled.items()}
    for label, overlay in overlays.items():
        if not isinstance(overlay, Mapping):
            problems.sentences.append(
                f"`axes.{key}.{label}: {overlay!r:.60}` must be a mapping of settings, since "
                f"`{key}` is none itself."
            )
            overlays[label] = {}
        else:  # parameters depend on other axes, and are checked cell by cell
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
        elif key not in axes:
            known = [*SETTINGS, *(axis for axis in axes if axis not in SETTINGS)]
            problems.sentences.append(unknown(f"points.{i}", key, known))
            continue
        elif axes[key]:  # else the axis itself is reported
            problems.sentences.append(unknown(f"points.{i}.{key}", label, axes[key]))
        labels[key] = label
    settled = _settled(
        base, {k: v for k, v in overlay.items() if "." not in k}, f"points.{i}", problems
    )
    return labels, {k: settled.get(k, v) for k, v in overlay.items()}


def _cells(
    base: dict[str, Any],
    drafts: Iterable[tuple[dict[str, Any], dict[str, Any]]],
    problems: Problems,
    load_plans: LoadPlans,
) -> tuple[list[Cell], list[Repaired]]:
    """The valid cells and the invalid ones; each problem is reported once."""
    cells: list[Cell] = []
    repaired: list[Repaired] = []
    wrong: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    whole = not problems.sentences  # else a missing cell may have another reason
    for i, (labels, overlay) in enumerate(drafts):
        id_ = cell_id(i, labels)
        if (twin := seen.setdefault(repr(labels), id_)) != id_ and whole:
            problems.sentences.append(f"The cell `{id_}` is the same as `{twin}`: leave one out.")
        own = Problems()
        settings = _examined(base, overlay, load_plans, own)
        for sentence in dict.fromkeys(own.sentences):
            wrong.setdefault(sentence, []).append(id_)
        if own.sentences:
            repaired.append(Repaired(settings, frozenset(own.replaced)))
        else:
            cells.append(Cell(id_, labels, settings))
    for problem, ids in wrong.items():
        problems.sentences.append(
            f"{problem} (cell {ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''})"
        )
    if cells and whole and not wrong:
        if base["data"] is not None and not any(cell.settings.published for cell in cells):
            problems.sentences.append(
                f"`data: {base['data']}` is used by no cell: leave it out, or give the name of a "
                f"published set as `prompts`: {', '.join(SETS)}."
            )
        of_draft = [name for name in ("draft", "draft_lora") if base[name] is not None]
        if of_draft and all(load_plans.of(cell.settings).draft is None for cell in cells):
            problems.sentences += [
                f"`{name}: {base[name]}` is used by no cell: leave it out, or give a drafter that "
                "needs a draft model."
                for name in of_draft
            ]
    return cells, repaired


def _examined(
    base: dict[str, Any], overlay: Mapping[str, Any], load_plans: LoadPlans, problems: Problems
) -> Settings:
    """The settings of a cell, with defaults in place of invalid values.

    Loads nothing and reads no checkpoint.
    """
    settings = Settings(**_settled(base, overlay, "", problems))
    settings.examine(problems)
    settings = settings.with_defaults(problems.replaced)
    sentences, changed = load_plans.problems(settings)
    problems.sentences += sentences
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
    """All combinations of labels; only the base run if there is no axis."""
    for labels in itertools.product(*axes.values()):
        yield dict(zip(axes, labels, strict=True))


def _base_label(key: str, base: Mapping[str, Any]) -> Any:
    """The value of the base run on an axis."""
    head, _, rest = key.partition(".")
    value: Any = base.get(head, BASE)
    for part in rest.split(".") if rest else ():
        value = (
            (value.get("init_args") or {}).get(part, BASE) if isinstance(value, Mapping) else BASE
        )
    return called(value)


def _settled(
    base: dict[str, Any], overrides: Mapping[str, Any], where: str, problems: Problems
) -> dict[str, Any]:
    """The settings with the overrides, and a problem for each invalid key."""
    with contextlib.suppress(OptionError):  # fast path: most of thousands of cells are valid
        return overlaid(base, {str(key): value for key, value in overrides.items()})
    for key in sorted(overrides, key=lambda key: str(key).count(".")):
        with problems.noted(where, str(key).partition(".")[0]):
            base = overlaid(base, {str(key): overrides[key]})
    return base


def _anchored(settings: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """The settings with absolute paths; unreadable prompts are reported once and replaced."""
    try:
        return anchored(settings)
    except OptionError as error:
        problems.add(str(error), "prompts")
        return anchored(settings | {"prompts": DEFAULTS["prompts"]})
