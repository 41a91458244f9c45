"""Loads models: specification, checks of a pair, and a cache of the models loaded last."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch

from bass.checkpoints.folder import DTYPES, eos_ids, stored_dtype
from bass.checkpoints.hub import resolve
from bass.checkpoints.lora import Adapter
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
    """

    checkpoint: str
    device: torch.device
    dtype: str
    quantization: Quantization | None = None
    dummy: bool = False
    lora: str | None = None
    family: type[CausalDecoder] | None = None

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)  # the class of a quantization may not define equality

    def __hash__(self) -> int:
        return hash(repr(self))


@final
@dataclass(frozen=True)
class Models(ModelPair):
    """A target, its draft if one is needed, and their tokenizer."""

    tokenizer: Tokenizer | None
    eos: list[int]
    # of the target and the draft
    quantizations: tuple[Quantization | None, Quantization | None] = (None, None)
    dummy: bool = False  # random weights

    @classmethod
    def read(
        cls, target: ModelSpec, draft: ModelSpec | None, checkpoints: "Sequence[Checkpoint]"
    ) -> "Models":
        """Load the weights of checkpoints that have been checked."""
        ours, theirs = checkpoints[0].index, checkpoints[1].index if draft is not None else None
        kind, device = _dtype(target.dtype, target.device, ours), target.device
        quantizations = target.quantization, None if draft is None else draft.quantization
        loaded_draft = None
        if theirs is not None:
            size = ours.decoder.shape.vocab_size
            loaded_draft = _load_draft(theirs, device, kind, quantizations[1], size)
        loaded = ours.load(device, kind, quantizations[0])
        if device.type == "cpu":
            load_cpu_kernels()
        tokenizer, eos = checkpoints[0].tokenizer, checkpoints[0].eos
        return cls(loaded, loaded_draft, device, kind, tokenizer, eos, quantizations, target.dummy)


@final
@dataclass
class ModelCache:
    """Holds the models loaded last, for any plan with the same models."""

    _specs: tuple[ModelSpec, ModelSpec | None] | None = None
    _models: Models | None = field(default=None, repr=False)

    def models(
        self,
        target: ModelSpec,
        draft: ModelSpec | None,
        checkpoints: "Sequence[Checkpoint]" = (),
    ) -> Models:
        """The specified models; if not cached, loaded from their checkpoints. A cached pair can
        serve its target alone.
        """
        if self._models is None or not self.holds(target, draft):
            self.clear()  # frees them first: memory may not suffice for both
            self._models = Models.read(target, draft, checkpoints)
            self._specs = target, draft
        if draft is not None or self._models.draft is None:
            return self._models
        return replace(
            self._models, draft=None, quantizations=(self._models.quantizations[0], None)
        )

    def holds(self, target: ModelSpec, draft: ModelSpec | None) -> bool:
        """Whether the specified models are cached."""
        loaded = self._specs
        return loaded is not None and loaded[0] == target and draft in (None, loaded[1])

    def clear(self) -> None:
        """Drop the cached models."""
        self._specs = self._models = None


@final
@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose config, headers and tokenizer have been read; weights have not."""

    index: CheckpointIndex
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, spec: ModelSpec) -> "Checkpoint":
        """Find the folder (downloaded if it is a hub id) and read all but the weights; random ones
        need none.
        """
        folder = resolve(spec.checkpoint, weights=not spec.dummy)
        if spec.dummy:
            index = dummy_index(folder, spec.family)
        else:
            adapter = None if spec.lora is None else Adapter.read(resolve(spec.lora))
            index = read_index(folder, spec.family, adapter)
        return cls(index, Tokenizer.read(folder))

    @property
    def eos(self) -> list[int]:
        """Token ids that end a sequence."""
        return eos_ids(self.index.folder, self.index.raw)


def _load_draft(
    index: CheckpointIndex,
    device: torch.device,
    dtype: torch.dtype,
    quantization: Quantization | None,
    size: int,
) -> CausalDecoder:
    """Load a draft, cut to the first `size` token ids; its head is quantized like its layers."""
    draft = narrow(index.load(device, dtype, quantization), size)
    return draft if quantization is None else quantize_head(draft, quantization)


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

    Vocabulary sizes may differ by padding only: both models have the same tokenizer, and its ids
    fit into the smaller vocabulary. The target keeps its padding; the draft is cut to its ids.
    Ids have no meaning where random weights have no tokenizer, so these may have any sizes.
    """
    if target.index.dummy and target.tokenizer is None and draft.tokenizer is None:
        return
    check_same_tokenizer(target.tokenizer, draft.tokenizer)
    sizes = [checkpoint.index.decoder.shape.vocab_size for checkpoint in (target, draft)]
    last, known = max(sizes), ""
    if target.tokenizer is not None and draft.tokenizer is not None:
        last = max(target.tokenizer.vocabulary.values(), default=-1)
        known = f", and their tokenizer's ids go up to {last}"
    if sizes[0] != sizes[1] and last >= min(sizes):
        raise PairingError(
            f"Target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens{known}: use a "
            "draft with the target's vocabulary."
        )


def _dtype(dtype: str, device: torch.device, checkpoint: CheckpointIndex) -> torch.dtype:
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    return stored_dtype(checkpoint.raw) or checkpoint.dtypes[0]
