"""The family of a checkpoint: built in, from an installed package, or given by the user."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bass.errors import CheckpointError
from bass.models import FAMILIES
from bass.models.decoder import CausalDecoder

GROUP = "bass.families"  # entry points: model_type = module:Class
# heads that draft from a target's hidden states, by words of config.json
_HEADS = ("eagle", "medusa", "dflash", "mlp_speculator")
_OF_HEADS = ("architectures", "model_type", "speculators_model_type")


def family_of(
    folder: Path, raw: dict[str, Any], own: type[CausalDecoder] | None = None
) -> type[CausalDecoder]:
    """The family for the model_type of a parsed config.json.

    own: a class of the user's, which comes first for its own model_type; then come the families of
    `bass`, then those of installed packages. Raises `CheckpointError`.
    """
    name = raw.get("model_type")
    words = str([raw.get(field) for field in _OF_HEADS]).lower()
    if found := [head for head in _HEADS if head in words]:
        raise CheckpointError(
            f"`{folder}` is no whole model but a head ({found[0]}), which drafts from the target's "
            "hidden states and which `bass` does not load: give a small model of the target's "
            "vocabulary as the draft, or `--drafter ngram`."
        )
    if own is not None and own.config_type.model_type == name:
        return own
    if name in FAMILIES:
        return FAMILIES[name]
    for point in entry_points(group=GROUP, name=str(name)):
        return point.load()
    raise CheckpointError(
        f"`{folder}` is of model_type `{name}`: give another model, or write its family as "
        "docs/extend/model.md shows, and give it as `--family package.module:Class`; `bass` reads "
        f"{', '.join(sorted(FAMILIES))}."
    )
