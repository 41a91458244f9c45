"""Loads models: specification, checks of a pair, and a cache of the models loaded last."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from bass.checkpoints.folder import DTYPES, eos_ids, read_config, stored_dtype
from bass.checkpoints.heads import HeadIndex, read_head
from bass.checkpoints.hub import resolve
from bass.checkpoints.lora import Adapter
from bass.checkpoints.shards import TensorFiles
from bass.checkpoints.weights import CheckpointIndex, dummy_index, narrow, read_index
from bass.engine.assembly import ModelPair
from bass.errors import OptionError, PairingError
from bass.interfaces import Quantization
from bass.models.decoder import CausalDecoder
from bass.ops.dispatch import load_cpu_kernels
from bass.quantization.apply import quantize_head
from bass.text import Tokenizer, check_same_tokenizer


@final
@dataclass(frozen=True, eq=False)
class ModelSpec:
    """Which model to load, and how; equal specs can share one loaded model.

    checkpoint: a folder or a hub id. dtype: one of `DTYPES`, or `auto`. dummy: random weights.
    lora: an adapter that is merged, a folder or a hub id. family: a class of the user's.
    mtp: only the MTP layer of the folder, which may hold the whole target.
    """

    checkpoint: str
    device: torch.device
    dtype: str
    quantization: Quantization | None = None
    dummy: bool = False
    lora: str | None = None
    family: type[CausalDecoder] | None = None
    mtp: bool = False

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)  # the class of a quantization may not define equality

    def __hash__(self) -> int:
        return hash(repr(self))


@final
@dataclass(frozen=True)
class Models(ModelPair):
    """A target, its draft if one is needed, and their tokenizer. specs: what was loaded of both."""

    tokenizer: Tokenizer | None
    eos: list[int]
    specs: tuple[ModelSpec, ModelSpec | None]

    @classmethod
    def read(
        cls, target: ModelSpec, draft: ModelSpec | None, checkpoints: "Sequence[Checkpoint]"
    ) -> "Models":
        """Load the weights of checkpoints that have been checked."""
        first, device = checkpoints[0], target.device
        kind, drafting = _dtype(target.dtype, device, first.model), None
        if draft is not None and isinstance(index := checkpoints[1].index, HeadIndex):
            positions = first.model.decoder.shape.max_positions
            drafting = index.load(device, kind, positions)
        elif draft is not None:
            drafting = checkpoints[1].model.load(device, kind, draft.quantization)
            drafting = narrow(drafting, first.model.decoder.shape.vocab_size)
            if draft.quantization is not None:  # the head like the layers
                drafting = quantize_head(drafting, draft.quantization)
        loaded = first.model.load(device, kind, target.quantization)
        if device.type == "cpu":
            load_cpu_kernels()
        return cls(loaded, drafting, device, kind, first.tokenizer, first.eos, (target, draft))


@final
class ModelCache:
    """Holds the models loaded last, for any plan with the same models."""

    last: Models | None = None

    def find(self, target: ModelSpec, draft: ModelSpec | None) -> Models | None:
        """The specified models, if they are loaded; a loaded pair can serve its target alone."""
        found = self.last
        if found is None or found.specs[0] != target or draft not in (None, found.specs[1]):
            return None
        return found if draft is not None else replace(found, draft=None, specs=(target, None))


@final
@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose config, headers and tokenizer have been read; weights have not."""

    index: CheckpointIndex | HeadIndex  # a draft may be a head
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, spec: ModelSpec, draft: bool = False) -> "Checkpoint":
        """Find the folder (downloaded if it is a hub id) and read all but the weights."""
        folder = resolve(spec.checkpoint, weights=not spec.dummy)
        raw, files, kind = read_config(folder), None, "MTP" if spec.mtp else None
        if draft:
            files = TensorFiles(folder, (), {}) if spec.dummy else TensorFiles.read(folder)
            if (head := read_head(folder, files, kind, raw, spec.family)) is not None:
                return cls(head, None)
        if spec.dummy:
            index = dummy_index(folder, spec.family, raw)
        else:
            adapter = None if spec.lora is None else Adapter.read(resolve(spec.lora))
            index = read_index(folder, spec.family, adapter, files, raw)
        return cls(index, Tokenizer.read(folder))

    @property
    def model(self) -> CheckpointIndex:
        """The index of a whole model."""
        assert isinstance(self.index, CheckpointIndex), "a head is no whole model"
        return self.index

    @property
    def eos(self) -> list[int]:
        """Token ids that end a sequence."""
        return eos_ids(self.index.folder, self.index.raw)


def check_family(family: type[CausalDecoder] | None, *checkpoints: Checkpoint) -> None:
    """Raise `OptionError` for a family of the user's that none of the checkpoints has."""
    if family is not None and all(type(c.index.decoder) is not family for c in checkpoints):
        kinds = ", ".join(sorted({f"`{c.index.raw['model_type']}`" for c in checkpoints}))
        raise OptionError(
            f"`family={family.__name__}` would not be used: it has the model_type "
            f"`{family.config_type.model_type}`, and the checkpoints have {kinds}; leave it out, "
            "or give its `config_type` their model_type."
        )


def check_pair(target: Checkpoint, draft: Checkpoint) -> None:
    """Raise a `PairingError` for a draft whose token ids have other meanings than the target's.

    Vocabulary sizes may differ by padding and added tokens only: both models have the same
    tokenizer otherwise, and its other ids fit into the smaller vocabulary. The target keeps all its
    ids; the draft is cut to them, and never drafts those that it lacks. Ids have no meaning where
    random weights have no tokenizer, so these may have any sizes.
    """
    if isinstance(draft.index, HeadIndex):
        check_head(target.model.decoder.config, draft.index)
        return
    if target.index.dummy and target.tokenizer is None and draft.tokenizer is None:
        return
    check_same_tokenizer(target.tokenizer, draft.tokenizer)
    sizes = [checkpoint.index.decoder.shape.vocab_size for checkpoint in (target, draft)]
    last, known = max(sizes), ""
    if target.tokenizer is not None and draft.tokenizer is not None:
        last = max(target.tokenizer.fast.get_vocab(with_added_tokens=False).values(), default=-1)
        known = f", and the ids of their tokenizer, without added tokens, go up to {last}"
    if sizes[0] != sizes[1] and last >= min(sizes):
        raise PairingError(
            f"Target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens{known}: use a "
            "draft with the target's vocabulary."
        )


def check_head(target: Any, index: HeadIndex) -> None:
    """Raise a `PairingError` for a head whose sizes are those of another target."""
    head = index.decoder.config
    for name, own, others in (
        ("hidden size", head.target_hidden_size or head.hidden_size, target.hidden_size),
        ("vocabulary", head.vocab_size, target.vocab_size),
    ):
        if own != others:
            raise PairingError(
                f"The head `{index.folder}` was made for a target with a {name} of {own:,}, and "
                f"the target's is {others:,}: give the target that it was trained for."
            )


def _dtype(dtype: str, device: torch.device, checkpoint: CheckpointIndex) -> torch.dtype:
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    return stored_dtype(checkpoint.raw) or checkpoint.dtypes[0]
