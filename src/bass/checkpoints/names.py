"""Names of stored tensors as a family's decoder expects them: prefixes of wrappers are removed,
and tensors that no decoder needs are set aside.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from bass.checkpoints.folder import some
from bass.checkpoints.shards import TensorFiles
from bass.errors import CheckpointError
from bass.models.decoder import CausalDecoder
from bass.models.sources import WeightSource

# inserted anywhere by wrappers of modules: torch.compile, FSDP, activation checkpointing
_INSERTED = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# what a language model computes without: heads of other tasks, and towers of other modalities
_OTHER_HEADS = (
    "score", "v_head", "value_head", "classifier", "classification_head", "reward_head",
    "regression_head", "qa_outputs",
)  # fmt: skip
_TOWERS = (
    "vision_tower", "vision_model", "vision_encoder", "visual", "image_newline", "audio_tower",
    "multi_modal_projector", "mm_projector", "vision_language_adapter", "embed_vision",
    "embed_audio",
)  # fmt: skip
_HARMLESS = re.compile(rf"(?:model\.)?(?:{'|'.join(_OTHER_HEADS + _TOWERS)})(?:\..*)?")
_OF_TOWERS = re.compile(rf"(?:model\.)?(?:{'|'.join(_TOWERS)})\..*")
# buffers that follow from the config
_BUFFERS = (".position_ids", ".inv_freq", ".original_inv_freq", ".masked_bias", ".causal_mask")

# Stacks of experts, as `transformers` 5 saves them with `save_original_format=False`.
_EXPERT = re.compile(r"(?P<module>.+)\.experts\.(?P<expert>\d+)\.(?P<matrix>\w+)\.weight")
# the matrix of one expert -> the stack of all, and the half of its rows
_STACKS = {
    "gate_proj": ("gate_up_proj", 0), "w1": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1), "w3": ("gate_up_proj", 1),
    "down_proj": ("down_proj", None), "w2": ("down_proj", None),
}  # fmt: skip
# a part of a family's name -> that in a folder with stacks
_WITH_STACKS = {
    ".input_linear.weight": ".experts.gate_up_proj",
    ".output_linear.weight": ".experts.down_proj",
    ".router.layer.weight": ".router.weight",
    ".block_sparse_moe.gate.": ".mlp.gate.",
}


def has_stacks(files: TensorFiles) -> bool:
    """Whether the files have stacks of experts."""
    return any(name.endswith(".experts.gate_up_proj") for name in files.stored)


def split_experts(files: TensorFiles, wanted: Collection[str]) -> TensorFiles:
    """The files with stacks of experts (gate_up_proj [experts, 2 inner, hidden] and down_proj
    [experts, hidden, inner]) under the names that the family reads.
    """
    old, found, used = files.stored, dict(files.stored), set[str]()
    for name in wanted:
        if name in old:
            continue
        for part, stacked in _WITH_STACKS.items():
            if (other := name.replace(part, stacked)) in old and other != name:
                found[name] = found.pop(other)
        if (match := _EXPERT.fullmatch(name)) is None or match["matrix"] not in _STACKS:
            continue
        matrix, half = _STACKS[match["matrix"]]
        module = match["module"].replace(".block_sparse_moe", ".mlp")
        for end in ("", "_scale_inv"):
            stack = old.get(f"{module}.experts.{matrix}{end}")
            if stack is None or len(stack.shape) != 3:
                continue
            rows = stack.shape[1] // (1 if half is None else 2)
            part = int(match["expert"]), slice(rows * (half or 0), rows * (half or 0) + rows)
            found[name + end] = replace(stack, shape=(rows, stack.shape[2]), part=part)
            used.add(stack.name)
    return replace(files, stored={name: t for name, t in found.items() if name not in used})


def renamed(files: TensorFiles, wanted: Collection[str], prefix: str) -> tuple[TensorFiles, str]:
    """The files with their tensors by the names of the family, and the prefix that was removed.

    wanted: the names of the family, which begin with `prefix`, except a head's. A prefix is removed
    only where all wanted names are known without it, so a folder that lacks tensors keeps its
    names.
    """
    inner = [name for name in sorted(wanted) if name.startswith(prefix)]
    if not inner or _complete(files.stored, inner, prefix):
        return files, ""
    plain = {name: without_wrappers(name) for name in files.stored}
    ends = inner[-1], inner[-1].removeprefix(prefix)
    starts = [n.removesuffix(end) for end in ends for n in plain.values() if n.endswith(end)]
    for start in dict.fromkeys(("", *starts)):
        stored = {plain[name].removeprefix(start): t for name, t in files.stored.items()}
        # two tensors may not get the same name
        if len(stored) == len(plain) and _complete(stored, inner, prefix):
            inserted = [one[0] for one in map(_INSERTED.search, files.stored) if one is not None]
            return replace(files, stored=stored), start or inserted[0]
    return files, ""


def without_wrappers(name: str) -> str:
    """A tensor's name without the parts that wrappers of modules insert."""
    return _INSERTED.sub("", name)


def _complete(names: Collection[str], inner: list[str], prefix: str) -> bool:
    """Whether all names of the family's body are there, with its prefix or without."""
    held = {*names}
    return held.issuperset(inner) or held.issuperset(name.removeprefix(prefix) for name in inner)


def is_unused(name: str, family: type[CausalDecoder] | CausalDecoder) -> bool:
    """Whether a tensor that the decoder does not have changes nothing that it computes."""
    return name.endswith((*family.ignored, *_BUFFERS)) or _HARMLESS.fullmatch(name) is not None


def of_tower(name: str) -> bool:
    """Whether a tensor belongs to another modality, of which a text half is read without."""
    return _OF_TOWERS.fullmatch(name) is not None


def named_as_stored(
    family: type[CausalDecoder],
    sources: dict[str, WeightSource],
    stored: Mapping[str, object],
    head: str,
) -> dict[str, WeightSource]:
    """The sources under the stored names: checkpoints of the base model lack the prefix, and a tied
    matrix may have either name.
    """
    if not any(name.startswith(family.prefix) for name in stored):
        sources = {
            parameter: replace(
                s, tensors=tuple(name.removeprefix(family.prefix) for name in s.tensors)
            )
            for parameter, s in sources.items()
        }
    embed = sources["embed"]
    if "head.weight" not in sources and embed.tensors[0] not in stored and head in stored:
        return sources | {"embed": replace(embed, tensors=(head,))}
    return sources


def refuse_differences(folder: Path, findings: dict[str, list[str]], head: str) -> None:
    """Raise `CheckpointError` if there are tensors that are missing, unexpected or wrongly shaped.

    findings: the tensors of each of the three kinds. head: the name of the head.
    """
    if findings == {"missing": [head], "unexpected": [], "wrongly shaped": []}:
        raise CheckpointError(
            f"`{folder}` holds no head of a language model (`{head}`), as models that embed or "
            "classify do, and its config.json does not tie the head to the embedding: give a "
            "checkpoint of the causal language model."
        )
    if any(findings.values()):
        says = [f"{len(n)} {kind} ({some(sorted(n))})" for kind, n in findings.items() if n]
        raise CheckpointError(
            f"`{folder}` does not hold the tensors that its config.json requires: "
            f"{', '.join(says)}: the files do not belong together."
        )
