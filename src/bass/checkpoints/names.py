"""Names of stored tensors as a family's decoder expects them: prefixes of wrappers are removed,
and tensors that no decoder needs are set aside.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from bass.checkpoints.folder import read_config
from bass.checkpoints.multimodal import HEAD, MULTIMODAL
from bass.checkpoints.shards import Stored, TensorFiles
from bass.models.decoder import CausalDecoder
from bass.models.sources import WeightSource

# what a language model computes without: heads of other tasks and of later tokens, and towers of
# other modalities
_OTHER_HEADS = (
    "score", "v_head", "value_head", "classifier", "classification_head", "reward_head",
    "regression_head", "qa_outputs", "mtp", "mtp_layers",
)  # fmt: skip
_TOWERS = (
    "vision_tower", "vision_model", "vision_encoder", "visual", "image_newline", "audio_tower",
    "multi_modal_projector", "mm_projector", "vision_language_adapter", "embed_vision",
    "embed_audio",
)  # fmt: skip
_HARMLESS = re.compile(rf"(?:model\.)?(?:{'|'.join(_OTHER_HEADS + _TOWERS)})(?:\..*)?")
OF_TOWERS = re.compile(rf"(?:model\.)?(?:{'|'.join(_TOWERS)})\..*")
# buffers that follow from the config
_BUFFERS = (
    ".position_ids", ".inv_freq", ".original_inv_freq", ".masked_bias", ".causal_mask",
    ".attn.bias", ".attention.bias",
)  # fmt: skip

# Tensors of mixtures -> their names in a folder with stacks of experts, as `transformers` 5 has
# them in memory, and saves them with `save_original_format=False`: gate_up_proj [experts, 2 inner,
# hidden] and down_proj [experts, hidden, inner].
_STACKS = {
    r"\.(block_sparse_moe|mlp)\.experts\.0\.(gate_proj|w1)\.weight": ".mlp.experts.gate_up_proj",
    r"\.(block_sparse_moe|mlp)\.experts\.0\.(down_proj|w2)\.weight": ".mlp.experts.down_proj",
    r"\.input_linear\.weight": ".experts.gate_up_proj",
    r"\.output_linear\.weight": ".experts.down_proj",
    r"\.router\.layer\.weight": ".router.weight",
    r"\.block_sparse_moe\.gate\.weight": ".mlp.gate.weight",
}
_STACK = ".experts.gate_up_proj", ".experts.down_proj"


def of_stacks(
    sources: Mapping[str, WeightSource], stored: Mapping[str, Stored]
) -> dict[str, WeightSource]:
    """The sources, with stacks of experts where the files have them."""
    counts = {t.shape[0] for name, t in stored.items() if name.endswith(_STACK)}
    found = dict(sources)
    for parameter, source in sources.items() if counts else ():
        for pattern, stacked in _STACKS.items():
            name, count = re.subn(pattern, stacked, source.tensors[0])
            if count:
                experts = max(counts) if name.endswith(_STACK) else 0
                whole = replace(source, tensors=(name,), sizes=(sum(source.sizes),))
                found[parameter] = replace(whole, stacked=experts)
    return found


def renamed(files: TensorFiles, wanted: Collection[str], prefix: str) -> tuple[TensorFiles, str]:
    """The files with their tensors by the names of the family, and the prefix that was removed.

    wanted: the names of the family, which begin with `prefix`, except a head's. A prefix is removed
    only where all wanted names are known without it, so a folder that lacks tensors keeps its
    names.
    """
    inner = [name for name in sorted(wanted) if name.startswith(prefix)]
    if not inner or _complete(files.stored, inner, prefix):
        return files, ""
    ends = inner[-1], inner[-1].removeprefix(prefix)
    starts = [n.removesuffix(end) for end in ends for n in files.stored if n.endswith(end)]
    for start in dict.fromkeys(starts):
        stored = {name.removeprefix(start): t for name, t in files.stored.items()}
        # two tensors may not get the same name
        if len(stored) == len(files.stored) and _complete(stored, inner, prefix):
            return replace(files, stored=stored), start
    return files, ""


def _complete(names: Collection[str], inner: list[str], prefix: str) -> bool:
    """Whether all names of the family's body are there, with its prefix or without."""
    held = {*names}
    return held.issuperset(inner) or held.issuperset(name.removeprefix(prefix) for name in inner)


def is_unused(name: str) -> bool:
    """Whether a tensor that no decoder has changes nothing that it computes."""
    return name.endswith(_BUFFERS) or _HARMLESS.fullmatch(name) is not None


def named_as_stored(
    family: type[CausalDecoder],
    sources: dict[str, WeightSource],
    stored: Mapping[str, object],
    head: str,
) -> dict[str, WeightSource]:
    """The sources as stored: without the prefix, or a tied matrix by its other name."""
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


def text_half(
    half_of: str, raw: dict[str, Any], files: TensorFiles
) -> tuple[dict[str, Any], TensorFiles]:
    """The tensors of a multimodal folder's text half, named as in a folder of its own, and its
    config.json.

    If the outer config does not say whether the head is tied to the embedding, it is where none is
    stored, as in `transformers`, or where the text half says so.
    """
    names = MULTIMODAL[half_of].names(files.stored)
    tie = "tie_word_embeddings"
    if raw.get(tie) is None or (HEAD not in names and read_config(files.folder).get(tie) is None):
        raw = raw | {tie: HEAD not in names}
    stored = {own: files.stored[name] for own, name in names.items()}
    return raw, replace(files, stored=stored, unread=len(files.stored) - len(stored))
