"""What `load` brings together: the strategies, and a target with its draft, checked against each
other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from bass.api.kinds import KINDS
from bass.api.resolve import make
from bass.attention import ON_CUDA
from bass.drafters import NoDrafter
from bass.errors import (
    CheckpointError,
    OptionError,
    PairingError,
    PolicyError,
    explained,
    unknown_name,
)
from bass.hub import resolve
from bass.interfaces import (
    AttentionBackend,
    DraftLengthPolicy,
    DraftMethod,
    Quantization,
    StopRule,
    Verifier,
)
from bass.models.checkpoint import DTYPES, eos_ids, stored_dtype
from bass.models.decoder import CausalDecoder
from bass.models.fused import fuse
from bass.models.quantized import quantize_head
from bass.models.weights import CheckpointIndex, narrow, read_index
from bass.ops.dispatch import runs_kernels
from bass.text import Tokenizer, check_same_tokenizer


@final
@dataclass(frozen=True)
class Strategies:
    """The strategies a model pair is run with."""

    policy: DraftLengthPolicy[Any]
    cache: Any  # a class with `allocate`
    attention: AttentionBackend[Any, Any]
    verifier: Verifier
    drafter: DraftMethod
    stop_rule: StopRule | None = None


@final
@dataclass(frozen=True)
class Models:
    """A target, its draft if one is needed, and their tokenizer."""

    target: CausalDecoder
    draft: CausalDecoder | None
    tokenizer: Tokenizer | None
    eos: list[int]
    device: torch.device
    dtype: torch.dtype
    # of the target, of the draft
    quantizations: tuple[Quantization | None, Quantization | None] = (None, None)

    @classmethod
    def read(
        cls,
        target: str | Path,
        draft: str | Path | None,
        needs_draft: bool,
        device: torch.device,
        dtype: str | torch.dtype,
        quantizations: tuple[Quantization | None, Quantization | None] = (None, None),
    ) -> "Models":
        """Check that the two belong together before any weight is read.

        Either may be a folder or a hub id.
        """
        if needs_draft and draft is None:
            raise PairingError(
                f"The target `{target}` needs a draft: give `draft=`, or "
                "`num_speculative_tokens=0` for plain decoding."
            )
        ours = Checkpoint.read(target)
        theirs = Checkpoint.read(draft) if needs_draft and draft is not None else None
        if theirs is not None:
            check_pair(ours, theirs)
        size = ours.index.decoder.shape.vocab_size
        kind, eos = _dtype(dtype, device, ours.index), ours.eos
        loaded_draft = (
            None
            if theirs is None
            else _load_draft(theirs.index, device, kind, quantizations[1], size)
        )
        loaded = ours.index.load(device, kind, quantizations[0])
        if device.type == "cuda":
            fuse(loaded)
            if loaded_draft is not None:
                fuse(loaded_draft)
        return cls(loaded, loaded_draft, ours.tokenizer, eos, device, kind, quantizations)


@final
@dataclass(frozen=True)
class Checkpoint:
    """A folder of which all but the weights has been read."""

    index: CheckpointIndex
    tokenizer: Tokenizer | None

    @classmethod
    def read(cls, spec: str | Path) -> "Checkpoint":
        """Find the folder, fetching it if `spec` is a hub id, and read its config, headers and
        tokenizer.
        """
        folder = resolve(spec)
        return cls(read_index(folder), Tokenizer.read(folder))

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
    """Without ids from `size` on, the target's number of them; its head is quantized with the
    rest.
    """
    draft = narrow(index.load(device, dtype, quantization), size)
    if quantization is None:
        return draft

    def no_room(reason: str) -> CheckpointError:
        needed = index.weight_bytes(dtype, quantization, draft=True)
        return CheckpointError(
            f"`{index.folder}` needs {needed / 1e9:.1f} GB on {device} with its head quantized, "
            "and more for a moment; there is no room "
            f"({reason}): choose a smaller draft, or another device."
        )

    with explained(no_room):
        return quantize_head(draft, quantization)


def check_pair(target: Checkpoint, draft: Checkpoint) -> None:
    """Raise a `PairingError` for a draft whose token ids do not mean what the target's mean.

    Sizes may differ by padding alone: both have the same tokenizer, and its ids fit into the
    smaller one. The target keeps its own padding, as without a draft; the draft's is what it has of
    the target's ids.
    """
    sizes = [checkpoint.index.decoder.shape.vocab_size for checkpoint in (target, draft)]
    known = target.tokenizer is not None and draft.tokenizer is not None
    if sizes[0] != sizes[1] and not known:
        raise PairingError(
            f"Target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens: use a draft "
            "with the target's vocabulary."
        )
    check_same_tokenizer(target.tokenizer, draft.tokenizer)
    if sizes[0] != sizes[1] and target.tokenizer is not None:
        last = max(target.tokenizer.vocabulary.values(), default=-1)
        if last >= min(sizes):
            raise PairingError(
                f"Target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens, and "
                f"their tokenizer's ids go up to {last}: "
                "use a draft with the target's vocabulary."
            )


def check_max_length(policy: DraftLengthPolicy[Any]) -> None:
    """Refuse a policy that does not say its longest draft."""
    most = getattr(policy, "max_length", None)
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or not 0 <= most < 2**31:
        raise PolicyError(
            f"`{type(policy).__name__}.max_length` is {most!r:.60}: a policy must say its longest "
            "draft, 0 or more, in 32 bits."
        )


def layout_for(cache: str | type, attention: Any, device: torch.device) -> type:
    """The cache class for `cache=`; "auto" is the layout whose default attention is the quickest on
    the device (docs/log.md).
    """
    if cache == "auto":
        cache = "split" if runs_kernels(device) and attention == "auto" else "padded"
    return make("cache", cache)


def backend_for(attention: Any, cache: Any, device: torch.device) -> AttentionBackend[Any, Any]:
    """The attention backend for `attention=`; "auto" is the first that reads what the cache gives,
    on a GPU of the kernels.
    """
    if attention != "auto":
        return make("attention", attention)
    registered: dict[str, Any] = dict(KINDS["attention"].registry)
    kernels = ON_CUDA if runs_kernels(device) else ()
    for backend in (*(registered[name] for name in kernels), *registered.values()):
        if backend.view_type is cache.view_type:
            return backend()
    raise PairingError(
        f"No registered attention backend reads what `{cache.__name__}` gives: give `attention=`."
    )


def drafter_for(
    method: DraftMethod, draft: str | Path | None, rule: StopRule | None
) -> DraftMethod:
    """The way to draft, which must have a use for the draft model and the stop rule that were
    given.
    """
    if isinstance(method, NoDrafter):
        raise OptionError(
            "A drafter that drafts nothing is plain decoding: give `num_speculative_tokens=0` "
            "instead of it."
        )
    if draft is not None and not method.needs_draft:
        raise OptionError(
            f"`draft={str(draft)!r}` would not be used by the drafter: leave it out, or give "
            "`drafter='model'`."
        )
    if rule is not None and not method.obeys_stop_rules:
        raise OptionError(
            f"`stop_rule={rule!r}` would not be used: `{type(method).__name__}` runs no draft loop "
            "that it could end; leave it out."
        )
    return method


def quantizations_for(
    quantization: Any, draft_quantization: Any, method: DraftMethod, device: torch.device
) -> tuple[Quantization | None, Quantization | None]:
    """Those of the target and of the draft for `quantization=` and `draft_quantization=`;

    None for the latter: the target's.
    """
    if draft_quantization is not None and not (method.needs_draft or isinstance(method, NoDrafter)):
        raise OptionError(
            f"`draft_quantization={draft_quantization!r}` would not be used: "
            f"`{type(method).__name__}` runs no draft model; leave it out."
        )
    ours = None if quantization is None else make("quantization", quantization)
    theirs = ours if draft_quantization is None else make("quantization", draft_quantization)
    for one in (ours, theirs):
        if one is not None:
            one.check(device)
    return ours, theirs


def find_device(device: str) -> torch.device:
    """The device for `device=`; "auto" is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise OptionError(
            f"`device={device!r}` cannot be used ({str(error).splitlines()[0]}): give `cpu`, or "
            "`auto`."
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise OptionError(f"`device={device!r}` is not supported: give `cpu`, `cuda`, or `auto`.")
    return found


def _dtype(
    dtype: str | torch.dtype, device: torch.device, checkpoint: CheckpointIndex
) -> torch.dtype:
    dtype = str(dtype).removeprefix("torch.")
    if dtype != "auto":
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, [*DTYPES, "auto"])
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    return stored_dtype(checkpoint.raw) or checkpoint.dtypes[0]
