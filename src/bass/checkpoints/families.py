"""The family of a checkpoint: built in, from an installed package, or given by the user."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from bass.errors import CheckpointError, OptionError, imported
from bass.models import FAMILIES
from bass.models.decoder import CausalDecoder

GROUP = "bass.families"  # entry points: model_type = module:Class


def family_of(
    folder: Path, raw: dict[str, Any], own: type[CausalDecoder] | None = None
) -> type[CausalDecoder]:
    """The family for the model_type of a parsed config.json.

    own: a class of the user's, which comes first for its own model_type; then come the families of
    `bass`, then those of installed packages. Raises `CheckpointError`.
    """
    name = raw.get("model_type")
    if own is not None and own.config_type.model_type == name:
        return own
    if name in FAMILIES:
        return FAMILIES[name]
    for point in entry_points(group=GROUP, name=str(name)):
        return plugin_family(point)
    raise CheckpointError(
        f"`{folder}` is of model_type `{name}`: give another model, or write its family as "
        "docs/extend/model.md shows, and give it as `--family package.module:Class`; `bass` reads "
        f"{', '.join(sorted(FAMILIES))}."
    )


def plugin_family(point: EntryPoint) -> type[CausalDecoder]:
    """The family that an installed package provides. Raises `OptionError`."""
    return family_class(f"`{point.name}` of an installed package (`{point.value}`)", point.load)


def family_class(called: str, load: Callable[[], Any]) -> type[CausalDecoder]:
    """The family that `load` imports. Raises `OptionError`, for any error of the user's module."""
    found = imported(f"the family {called}", load)
    if not (isinstance(found, type) and issubclass(found, CausalDecoder)):
        raise OptionError(
            f"{called} is no model family: give a subclass of "
            "`bass.models.decoder.CausalDecoder` (docs/extend/model.md), or its "
            "`package.module:Class`."
        )
    return found
