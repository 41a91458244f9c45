"""Configs by name or path, and their overrides on the command line."""

import copy
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bass.errors import OptionError, unknown_name
from bass.experiments.config import KEYS
from bass.experiments.raw import mapping, unknown
from bass.files import read_text
from bass.plain_yaml import LARGEST_YAML, read_yaml
from bass.problems import Problems
from bass.runs.settings import SETTINGS


def shipped() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    folder = Path(str(files("bass.experiments").joinpath("configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_mapping(path: Path, name: str, give: str, form: str, wrong: str) -> dict[Any, Any]:
    """The mapping in a YAML file. Raises an `OptionError` if there is none.

    give, form: remedies for an unreadable file and for one that is not YAML. wrong: how the
    message describes a file that holds no mapping.
    """
    try:
        content = read_yaml(read_text(path, LARGEST_YAML))
    except (OSError, ValueError) as error:  # no such file, no text
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"`{name}` cannot be read ({reason}): give {give}.") from error
    except yaml.YAMLError as error:
        raise OptionError(f"`{name}` is not YAML ({error}): {form}.") from error
    if not isinstance(content, dict):
        raise OptionError(f"`{name}` holds {content!r:.60}, which {wrong}.")
    return content


def read_config(name: str) -> dict[str, Any]:
    """The config in a YAML file, or the shipped config of this name."""
    path = shipped().get(name, Path(name))
    if not path.exists() and not name.endswith((".yaml", ".yml")) and "/" not in name:
        raise unknown_name("config", name, shipped())
    content = read_mapping(
        path,
        name,
        f"a YAML file, or one of {', '.join(shipped())}",
        "see docs/ablations.md for the form of a config",
        "is no config: give `base`, `axes` or `points`",
    )
    return {"name": path.stem} | content


def with_overrides(
    raw: Mapping[str, Any],
    quick: bool,
    overrides: Sequence[tuple[str, Any]],
    problems: Problems | None = None,
) -> dict[str, Any]:
    """The config, with its `quick` part if requested, and with the overrides of the command line.

    overrides: ("base.policy.k", 3), or ("axes.batch", [1, 2]); null removes an axis. problems:
    collects errors; without it they are raised.
    """
    result = copy.deepcopy(dict(raw))
    faster = result.pop("quick", None) or {}
    given, problems = problems, problems or Problems()
    if quick and not faster:
        problems.sentences.append("The config has no `quick` part: leave `--quick` out, or add it.")
    faster, layers = _quick_part(faster, problems)
    if quick:
        result |= {part: faster[part] for part in ("points", "exclude") if part in faster}
    # a removed axis overrides nothing
    ordered = sorted(overrides, key=lambda one: not one[0].startswith("axes."))
    for path, value in [*(layers if quick else ()), *ordered]:
        _override(result, path, value, problems)
    if given is None:
        problems.raise_any("The command line")
    return result


def _quick_part(faster: Any, problems: Problems) -> tuple[Mapping[str, Any], list[tuple[str, Any]]]:
    """The `quick` part of a config, and its settings as overrides."""
    if not isinstance(faster, Mapping):
        problems.sentences.append(
            f"`quick: {faster!r:.60}` must be a mapping: give `base` or `axes` in it."
        )
        faster = {}
    problems.sentences += [
        unknown(f"quick.{key}", key, ("base", "axes", "points", "exclude"))
        for key in faster
        if key not in KEYS[2:6]
    ]
    return faster, [
        (f"{part}.{key}", value)
        for part in ("base", "axes")
        for key, value in mapping(faster, part, problems).items()
    ]


def _override(result: dict[str, Any], path: str, value: Any, problems: Problems) -> None:
    """Set one value of the config, in place of its key and of the parameters below its key."""
    part, _, key = path.partition(".")
    whole = result.get(part) or {}
    if not isinstance(whole, Mapping):  # reported when the plan is made
        return
    # spelled like the options
    key = next((k for k in whole if part == "axes" and str(k).replace("-", "_") == key), key)
    kept = {
        k: v
        for k, v in whole.items()
        if k != key and not (part == "base" and str(k).startswith(f"{key}."))
    }
    if part == "base" and (axis := _axis_that_sets(result, key)) is not None:
        if axis in (key, key.partition(".")[0]):
            problems.sentences.append(
                f"`{key}` is an axis of the config, and would be overridden by it: give "
                f"`--axes.{key} [{value}]`."
            )
        else:
            problems.sentences.append(
                f"`{key}` is set by every label of the axis `{axis}`: take the axis out "
                f"(`--axes.{axis} null`)."
            )
    gone = part == "axes" and value is None
    if gone and key not in whole:
        problems.sentences.append(unknown(f"axes.{key}", key, whole))
    result[part] = {
        k: value if k == key else v
        for k, v in whole.items()
        if k in kept or (k == key and not gone)
    }
    result[part] |= {} if gone else {key: value}


def _axis_that_sets(raw: Mapping[str, Any], key: str) -> str | None:
    """An axis of the config that sets `key` in all its cells."""
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
