"""The family of a checkpoint: built in, from an installed package, or given by the user."""

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bass.errors import CheckpointError
from bass.models import FAMILIES
from bass.models.decoder import CausalDecoder

GROUP = "bass.families"  # entry points: model_type = module:Class
# Architectures without a decoder here: fields of config.json that declare them, and their words.
_STATES = ("ssm_cfg", "state_size", "mamba_d_state", "ssm_state_size", "linear_conv_kernel_dim")
_UNSUPPORTED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("kv_lora_rank",), "latent attention (`kv_lora_rank`), whose cache holds no keys and values"),
    (("alibi", "use_alibi"), "ALiBi, a bias of scores by distance, which no backend computes"),
    (_STATES, "state-space or linear-attention layers, whose state cannot drop rejected tokens"),
    (("topk_group",), "experts chosen by corrected sigmoids (`topk_group`), as no kernel chooses"),
    (("is_encoder_decoder",), "an encoder, which a decoder would have to attend to"),
    (("type_vocab_size", "patch_size"), "an encoder of texts or images, which generates no text"),
)
# Heads that draft from a target's hidden states: a sign in config.json or in the tensors' names,
# and what it is.
_HEADS = {
    "Eagle3": "EAGLE-3", "eagle3": "EAGLE-3", "d2t": "EAGLE-3", "midlayer": "EAGLE-3",
    "Eagle": "EAGLE", "eagle": "EAGLE", "DFlash": "DFlash", "dflash": "DFlash",
    "Medusa": "Medusa", "medusa": "Medusa", "medusa_head": "Medusa",
    "mlp_speculator": "MLP speculator", "fc": "EAGLE",
}  # fmt: skip
_ALIBI_TYPES = ("bloom", "mpt")  # which have ALiBi without a field of that name
_MIXTURES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


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
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load()
    raise _unsupported(folder, raw, name)


def refuse_head(folder: Path, raw: dict[str, Any], names: Iterable[str] = ()) -> None:
    """Raise `CheckpointError` for a head that drafts from a target's hidden states, in the place of
    a model. names: of its tensors.
    """
    fields = [raw.get(f) for f in ("architectures", "model_type", "speculators_model_type")]
    says = [str(field) for field in fields] + [key.partition("_")[0] for key in raw]
    of_config = [sign for sign in _HEADS if sign != "fc" and any(sign in text for text in says)]
    first = {name.partition(".")[0] for name in names}
    if found := of_config or [sign for sign in _HEADS if sign in first]:
        raise CheckpointError(
            f"`{folder}` is no whole model but a head of the kind {_HEADS[found[0]]} (by its "
            f"`{found[0]}`), which drafts from the target's hidden states and which `bass` does "
            "not load: give a small model of the target's vocabulary as the draft, or "
            "`--drafter ngram`."
        )


def _unsupported(folder: Path, raw: dict[str, Any], name: Any) -> CheckpointError:
    """The error for a model_type without a family: the reason, or the nearest family."""
    if not isinstance(name, str):
        return CheckpointError(
            f"`{folder / 'config.json'}` names no model_type (it has {name!r:.100}), which decides "
            "how the weights are used: write it into the file, or download the checkpoint again."
        )
    start = f"`{folder}` is of model_type `{name:.100}`"
    if text := raw.get("text_config"):
        start += ", a multimodal model, which `bass` does not support"
        raw = text
    known = f"`bass` reads: {', '.join(sorted(FAMILIES))}"
    if (reason := _reason(raw)) is not None:
        return CheckpointError(f"{start}, with {reason}: give another model; {known}.")
    mixture = any(raw.get(field) for field in _MIXTURES)
    near = nearest(raw)
    return CheckpointError(
        f"{start}{', a mixture of experts' if mixture else ''}; the nearest family by its fields "
        f"is `{near}`: write one as docs/extend/model.md shows and give it as "
        f"`--family package.module:Class`, or give another model; {known}."
    )


def _reason(raw: dict[str, Any]) -> str | None:
    """Why no decoder can be written for a config without a new mechanism; None if one can."""
    fields = (raw.get("attn_config") or {}) | raw  # MPT's
    for names, words in _UNSUPPORTED:
        if any(fields.get(name) for name in names):
            return words
    name = str(raw.get("model_type"))
    kinds = " ".join([name, *(raw.get("layer_types") or [])])
    if any(sign in kinds for sign in ("linear", "mamba", "conv", "recurrent", "rwkv")):
        return _UNSUPPORTED[2][1]
    return _UNSUPPORTED[1][1] if name in _ALIBI_TYPES else None


def nearest(raw: dict[str, Any]) -> str:
    """The model_type of the family that shares most fields with a config.json.

    Fields that a config of no family has tell nothing apart.
    """
    fields = {
        name: {*family.config_type.json_names().values()} for name, family in FAMILIES.items()
    }
    given = {*raw} & set.union(*fields.values())

    def shared(name: str) -> tuple[float, bool]:
        alike = str(raw.get("model_type", "")).startswith(name.rstrip("0123456789_"))
        return len(given & fields[name]) / len(given | fields[name]), alike

    return max(fields, key=shared)
