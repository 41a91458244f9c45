"""Folders of heads that draft from a target's hidden states."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from bass.checkpoints.families import family_of
from bass.checkpoints.folder import read_config, some
from bass.checkpoints.shards import Stored, TensorFiles, TensorReader, dtypes_of, mismatches
from bass.drafters import BlockHead, EagleHead, MedusaHead, MtpHead
from bass.drafters.heads import DraftHead
from bass.errors import BassError, CheckpointError
from bass.models.decoder import CausalDecoder
from bass.models.rope import Rotary
from bass.models.sources import fill_all_with_random, stored_shapes

_CLASSES = ("architectures", "model_type", "speculators_model_type")  # fields of config.json
# Kinds of heads, the special ones first: a word in the names of their classes, fields or tensors
# that no whole model has, and the head that reads them.
KINDS: dict[str, tuple[str, str, type[DraftHead] | None]] = {
    "DSpark": ("dspark", r"markov_rank|(logit_head\.)?markov_head\..*", BlockHead),
    "DFlash": ("dflash", r"dflash_config|(model\.)?hidden_norm\.weight", BlockHead),
    "Medusa": ("medusa", r"medusa_num_heads|medusa_heads?\..*|\d+\.0\.linear\.weight", MedusaHead),
    "MLP speculator": ("mlp_?speculator", r"speculator\..*", None),
    "MTP": ("mtp", r"mtp_layers\..*", MtpHead),
    "EAGLE-3": (
        "eagle_?3|peagle",
        r"draft_vocab_size|eagle_config|d2t|mask_hidden|"
        r"(model\.)?(midlayer\..*|layers\.0\.hidden_norm\..*)",
        EagleHead,
    ),
    "EAGLE": (
        "eagle",
        r"speculators_config|(model\.)?fc\.(weight|qweight|weight_packed)",
        EagleHead,
    ),
}
_MTP_LAYER = r"(model\.)?mtp(_layers)?\..*"  # by Qwen or MiMo; whole models may have one too


def kind_of_head(raw: Mapping[str, Any], tensors: Iterable[str] = ()) -> str | None:
    """Which of `KINDS` a folder holds, by its config.json and the names of its tensors; None: none
    of them.
    """
    words = str([raw.get(field) for field in _CLASSES]).lower()
    tensors = [*tensors]
    if tensors and all(re.fullmatch(_MTP_LAYER, one) for one in tensors):
        return "MTP"
    marks = [name for name, value in raw.items() if value is not None] + tensors
    for kind, (word, mark, _) in KINDS.items():
        if re.search(word, words) or any(re.fullmatch(mark, one) for one in marks):
            return kind
    return None


def refuse_head(folder: Path, raw: dict[str, Any], tensors: Iterable[str] = ()) -> None:
    """Raise `CheckpointError` for a head instead of a whole model, by its config.json and the names
    of its tensors.
    """
    if (kind := kind_of_head(raw, tensors)) is not None:
        raise CheckpointError(
            f"`{folder}` is no whole model but a head of {kind}, which drafts from the hidden "
            "states of a target: give it as `draft`, and the target that it was trained for."
        )


@final
@dataclass(frozen=True)
class HeadIndex:
    """A head without the values of its weights. `decoder` is on the meta device.

    dummy: there are no weights; loading makes random ones. pickled: tensors of pickle files.
    """

    folder: Path
    kind: str
    raw: dict[str, Any]
    files: TensorFiles
    decoder: DraftHead
    dummy: bool = False
    pickled: dict[str, Tensor] = field(default_factory=dict)

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Types of the stored weights, most bytes first; of random ones, that of config.json."""
        return dtypes_of(self.files.stored.values(), self.raw)

    @torch.no_grad()
    def load(self, device: torch.device, dtype: torch.dtype, positions: int = 0) -> DraftHead:
        """The head with its weights, on `device` in `dtype`. positions: the target's context."""
        head = type(self.decoder)(self.decoder.config, device, dtype)
        reader, sources = TensorReader(self.files, device), head.sources()
        if self.dummy:
            fill_all_with_random(head, torch.Generator(device).manual_seed(0))
        for name, parameter in () if self.dummy else head.named_parameters():
            tensors, pickled = sources[name].tensors, self.pickled
            parts = [pickled[t] if t in pickled else reader[t] for t in tensors]
            sources[name].fill(parameter, parts)
        head.finish()
        ids = getattr(head, "token_ids", None)
        if ids is not None and "t2d" in self.files.stored and not self.dummy:
            known = reader["t2d"].nonzero()[:, 0]
            if not torch.equal(known, ids.sort().values):
                warnings.warn(
                    f"The tables `d2t` and `t2d` of `{self.folder}` name different token ids: "
                    "drafts follow `d2t`, and are refused if it is the wrong one.",
                    stacklevel=2,
                )
        for module in head.modules():
            if isinstance(module, Rotary):
                module.context = max(module.context, positions)
        return head.requires_grad_(False).eval()


def read_head(
    folder: Path,
    files: TensorFiles | None = None,
    kind: str | None = None,
    raw: dict[str, Any] | None = None,
    family: type[CausalDecoder] | None = None,
) -> HeadIndex | None:
    """Read a head's config, and no weights; None if the folder holds no head.

    files, raw: its headers and config.json, if they have been read; without tensors the weights are
    random. kind: of `KINDS`, for the head in the folder of a whole model. family: a class of the
    user's for its own model_type, of which an MTP layer may be.

    Raises one `CheckpointError` that names all missing, unexpected and wrongly shaped tensors.
    """
    raw = read_config(folder) if raw is None else raw
    files = files or TensorFiles.read(folder)
    kind, dummy = kind or kind_of_head(raw, files.stored), not files.paths
    if kind is None:
        return None
    head = KINDS[kind][2]
    if head is None:
        raise CheckpointError(
            f"`{folder}` is a head of {kind}, which `bass` does not load: give a small model of "
            "the target's vocabulary as the draft, or `--drafter ngram`."
        )
    stored = {head.stored_name(name): tensor for name, tensor in files.stored.items()}
    if len(stored) < len(files.stored):
        twice = [n for n in files.stored if stored[head.stored_name(n)].name != n]
        raise CheckpointError(
            f"`{folder}` has two tensors for one of a head of {kind} ({some(twice)}): remove one."
        )
    pickled = masks_of(folder)
    stored |= {n: Stored(folder, n, "F32", tuple(x.shape)) for n, x in pickled.items()}
    files = replace(files, stored=stored)
    try:
        shapes = {name: tensor.shape for name, tensor in stored.items()}
        config = head.read_config(raw, shapes, partial(family_of, folder, own=family))
        empty = head(config, torch.device("meta")).requires_grad_(False).eval()
    except BassError as error:
        raise CheckpointError(f"`{folder}`: {error}") from error
    wanted = stored_shapes(empty, empty.sources())
    unexpected = [name for name in stored if name not in wanted and not empty.ignores(name)]
    if not dummy and (differences := mismatches(stored, wanted, unexpected)):
        raise CheckpointError(
            f"`{folder}` does not hold the tensors that its config.json requires of a head of "
            f"{kind}: {differences}."
        )
    return HeadIndex(folder, kind, raw, files, empty, dummy, pickled)


def masks_of(folder: Path) -> dict[str, Tensor]:
    """What a block drafter may have in `mask_embedding.pt`: a vector, alone or with its token."""
    if not (path := folder / "mask_embedding.pt").exists():
        return {}
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        tensors = found.values() if isinstance(found, dict) else (found,)
        [vector] = (one for one in tensors if isinstance(one, Tensor))
    except Exception as error:  # a pickle that is damaged, or holds more, may raise anything
        raise CheckpointError(f"`{path}` holds no vector: download it again.") from error
    return {"mask_embedding": vector.flatten()}
