"""Resolves the options of `load` to models and strategies, checked before any weight is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from bass import pair
from bass.api.loading import Checkpoint, ModelCache, Models, ModelSpec, check_family, check_pair
from bass.api.options import DEFAULT_POLICY, KINDS, LoadOptions
from bass.api.resolve import make
from bass.attention import ON_CUDA
from bass.checkpoints.families import family_class
from bass.checkpoints.folder import DTYPES
from bass.checkpoints.heads import HeadIndex
from bass.drafters import NoDrafter
from bass.drafters.heads import DraftHead
from bass.drafters.several import Choice, is_ours
from bass.engine.assembly import Strategies, check_features
from bass.errors import OptionError, PairingError, PolicyError, check_number, unknown_name
from bass.interfaces import AttentionBackend, DraftLengthPolicy, DraftMethod
from bass.models.decoder import CausalDecoder, FirstLayers
from bass.ops.dispatch import runs_kernels
from bass.option import check_options
from bass.process import find_object

_AS_STORED = "a head is computed as it is stored"


@final
@dataclass(frozen=True)
class LoadPlan:
    """Models and strategies that have been checked against each other."""

    target: ModelSpec
    draft: ModelSpec | None  # None if not needed
    parts: Strategies
    max_batch_size: int
    cuda_graphs: str | bool
    max_model_len: int | None = None

    @classmethod
    def of(cls, options: LoadOptions) -> "LoadPlan":
        """Resolve the options. Raises the errors of `load` that need no checkpoint."""
        check_options(options)
        policy = make("policy", _policy(options))
        check_max_length(policy)
        rule, trim = (
            None if spec in (None, "none") else make(kind, spec)
            for kind, spec in (("stop_rule", options.stop_rule), ("trim", options.trim))
        )
        method = make("drafter", options.drafter)
        if policy.max_length == 0:  # autoregressive decoding loads no draft, even if one is named
            method = NoDrafter()
        else:
            check_used(options, method)
            check_drafters(policy, method)
        device = find_device(options.device)
        layout = cache_for(options.cache, options.attention, device)
        backend = backend_for(options.attention, layout, device)
        parts = Strategies(
            policy, layout, backend, make("verifier", options.verifier), method, rule, trim
        )
        backend.check(device)
        use_graphs(options.cuda_graphs, device, parts)  # raises if not supported
        target, draft = _specs(options, device)
        if method.draft_in_target:
            draft = target if draft is None else draft
            draft = replace(draft, mtp=True, quantization=None, lora=None)
        limits = options.max_batch_size, options.cuda_graphs, options.max_model_len
        return cls(target, draft if method.needs_draft else None, parts, *limits)

    @property
    def models(self) -> tuple[ModelSpec, ModelSpec | None]:
        """The specs of the models; equal for plans that can share them."""
        return self.target, self.draft

    @property
    def strategies(self) -> list[Any]:
        """Everything whose class may be the user's: parts, quantizations, and families."""
        models = [spec for spec in self.models if spec is not None]
        of_models = (part for spec in models for part in (spec.quantization, spec.family))
        return [*vars(self.parts).values(), *of_models]

    def checkpoints(self) -> list[Checkpoint]:
        """The target and, if it is needed, the draft, without their weights."""
        drafting = [] if self.draft is None else [Checkpoint.of(self.draft, draft=True)]
        return [Checkpoint.of(self.target), *drafting]

    def check(self, read: list[Checkpoint] | None = None) -> list[Checkpoint]:
        """Check the models against each other and the strategies, before any weight is read; the
        checks of `bass.load`, `bass info` and `bass ablate`.

        read: what `checkpoints` returned. Raises a `BassError`.
        """
        read = self.checkpoints() if read is None else read
        if self.parts.drafter.needs_draft and self.draft is None:
            raise PairingError(
                f"The target `{self.target.checkpoint}` needs a draft: give `draft`, or "
                "`num_speculative_tokens=0` for autoregressive decoding."
            )
        check_family(self.target.family, *read)
        if len(read) == 2:
            check_pair(*read)
            self.check_as_stored(read[1])
        self.check_decoders([one.index.decoder for one in read])
        return read

    def check_as_stored(self, read: Checkpoint) -> None:
        """Raise `OptionError` for an adapter or a quantization of a head, which takes none."""
        draft = self.draft
        if draft is None or not isinstance(read.index, HeadIndex):
            return
        own = draft.quantization  # by default the target's
        if draft.lora or (own is not None and repr(own) != repr(self.target.quantization)):
            option = "draft_lora" if draft.lora else "draft_quantization"
            raise OptionError(f"`{option}` would not be used: {_AS_STORED}; leave it out.")

    def check_decoders(self, modules: "Sequence[CausalDecoder | DraftHead]") -> None:
        """Check the shapes of target and draft against the strategies."""
        decoders = [one for one in modules if isinstance(one, CausalDecoder)]
        head = next((one for one in modules if isinstance(one, DraftHead)), None)
        target = decoders[0]
        layers = target.shape.layers
        check_features(self.parts.drafter.with_head(head, layers), layers)
        if first := self.parts.drafter.target_layers:
            FirstLayers(target, first)  # raises
        context = target.shape.max_positions
        if (requested := self.max_model_len) is not None and requested > context:
            raise OptionError(
                f"`max_model_len={requested}` is more than the context of the target, {context} "
                "tokens: give at most that."
            )

    def read(self, cache: ModelCache | None = None) -> Models:
        """Load the models, or take them from `cache`."""
        cache = ModelCache() if cache is None else cache
        models = cache.find(*self.models)
        if models is not None:
            self.check_decoders(models.modules)
            return models
        checkpoints = self.check()
        cache.last = None  # frees the others first: memory may not suffice for both
        cache.last = Models.read(*self.models, checkpoints)
        return cache.last


def check_used(options: LoadOptions, method: DraftMethod) -> None:
    """Raise `OptionError` for an option that a run with this drafter would not use."""
    name, unused = type(method).__name__, dict[str, str]()
    if options.load_format == "dummy":
        unused |= dict.fromkeys(("lora", "draft_lora"), "random weights take no adapter")
    if not method.needs_draft:
        of_draft = ("draft", "draft_lora", "draft_quantization")
        unused |= dict.fromkeys(of_draft, f"`{name}` runs no draft model")
    if method.draft_in_target:
        unused |= dict.fromkeys(("draft_lora", "draft_quantization"), _AS_STORED)
    if not method.obeys_stop_rules:
        unused["stop_rule"] = f"`{name}` does not apply stop rules"
    for option, why in unused.items():
        if (value := getattr(options, option)) is not None:
            raise OptionError(
                f"`{option}={str(value)!r:.60}` would not be used: {why}; leave it out."
            )


def _specs(options: LoadOptions, device: torch.device) -> tuple[ModelSpec, ModelSpec | None]:
    """The target and the draft; without both, the embedded pair, which has heads too."""
    target, draft = options.target, options.draft
    if target is None:
        target, draft = pair.TARGET, pair.DRAFT if draft is None else draft
    dtype = str(options.dtype).removeprefix("torch.")
    if dtype not in (known := [*DTYPES, "auto"]):
        raise unknown_name("dtype", dtype, known)
    if options.load_format not in (known := ["auto", "dummy"]):
        raise unknown_name("load format", str(options.load_format), known)
    family = None if options.family is None else find_family(options.family)

    dummy = options.load_format == "dummy"

    def spec(checkpoint: str | Path, quantization: Any, lora: str | Path | None) -> ModelSpec:
        method = None
        if quantization not in (None, "none"):
            method = make("quantization", quantization)
            method.check(device)
        adapter = None if lora is None else str(lora)
        if pair.is_head(checkpoint):
            checkpoint = pair.HEADS[str(checkpoint)]
        return ModelSpec(str(checkpoint), device, dtype, method, dummy, adapter, family)

    ours, theirs = options.quantization, options.draft_quantization
    theirs = ours if theirs is None else theirs
    first = spec(target, ours, options.lora)
    return first, None if draft is None else spec(draft, theirs, options.draft_lora)


def _policy(options: LoadOptions) -> Any:
    """The policy, by default `DEFAULT_POLICY`, or the fixed one for `num_speculative_tokens`."""
    k = options.num_speculative_tokens
    if k is None:
        return DEFAULT_POLICY if options.policy is None else options.policy
    if options.policy is not None:
        raise OptionError(
            "`num_speculative_tokens` is short for the fixed policy and contradicts "
            f"`policy={options.policy!r}`: give one of them."
        )
    return {"class_path": "fixed", "init_args": {"k": k}}


def check_max_length(policy: DraftLengthPolicy[Any]) -> None:
    """Raise `OptionError` for a policy that does not declare its longest draft."""
    most = getattr(policy, "max_length", None)
    check_number(f"{type(policy).__name__}.max_length", most, "[0, 2147483647]")


def check_drafters(policy: DraftLengthPolicy[Any], method: DraftMethod) -> None:
    """Raise `PolicyError` for a policy that needs more drafters than there are."""
    count = len(method.methods) if isinstance(method, Choice) else 1
    if policy.drafters > count and is_ours(method):
        raise PolicyError(
            f"`{type(policy).__name__}` chooses from {policy.drafters} drafters, and the run has "
            f"{count}: give `drafter=choice` with as many `methods`."
        )


def cache_for(cache: Any, attention: Any, device: torch.device) -> Any:
    """The layout for `cache=`; "auto": the first that gives the view of an explicit `attention`,
    else the one with the fastest default attention on the device (docs/log).
    """
    if cache != "auto":
        return make("cache", cache)
    if attention == "auto":
        return make("cache", "split" if runs_kernels(device) else "padded")
    view = make("attention", attention).view_type
    layouts: dict[str, Any] = dict(KINDS["cache"].registry)
    return next((one for one in layouts.values() if one.view_type is view), make("cache", "padded"))


def backend_for(attention: Any, cache: Any, device: torch.device) -> AttentionBackend[Any, Any]:
    """The attention backend for `attention=`; "auto": the first that reads the cache's view,
    starting with the kernels on a GPU. Raises `PairingError` for one that reads another view.
    """
    registered: dict[str, Any] = dict(KINDS["attention"].registry)
    if attention != "auto":
        made = make("attention", attention)
        if made.view_type is cache.view_type:
            return made
        valid = [b.__name__ for b in registered.values() if b.view_type is cache.view_type]
        raise PairingError(
            f"Cannot pair `{type(made).__name__}` with `{cache.__name__}`: the backend reads "
            f"{made.view_type.__name__}, the cache gives {cache.view_type.__name__}. Backends "
            f"for `{cache.__name__}`: {', '.join(valid) or 'none registered'}."
        )
    kernels = ON_CUDA if runs_kernels(device) else ()
    for backend in (*(registered[name] for name in kernels), *registered.values()):
        if backend.view_type is cache.view_type:
            return backend()
    raise PairingError(
        f"No registered attention backend reads the view of `{cache.__name__}`: give `attention=`."
    )


def find_family(spec: Any) -> type[CausalDecoder]:
    """The decoder class for `family=`: a class, or "package.module:Class"."""
    module, _, name = str(spec).partition(":")
    load = partial(find_object, module, name) if isinstance(spec, str) else lambda: spec
    return family_class(f"`{spec!s:.200}`", load)


def find_device(device: str) -> torch.device:
    """The device for `device=`; "auto" is a GPU if there is one."""
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


def use_graphs(requested: str | bool, device: torch.device, parts: Strategies) -> bool:
    """Whether steps run as CUDA graphs for `cuda_graphs=`; "auto": where they are supported."""
    if requested not in ("auto", "lazy", True, False):
        raise OptionError(f"`cuda_graphs={requested!r}` must be `auto`, `lazy`, True or False.")
    supported = device.type == "cuda" and parts.attention.capturable
    if requested is True and not supported:
        backends: dict[str, Any] = dict(KINDS["attention"].registry)
        view = parts.cache.view_type
        able = [n for n, b in backends.items() if b.view_type is view and b.capturable]
        raise OptionError(
            "`cuda_graphs=True` needs a CUDA device and an attention backend that a graph can "
            f"capture, for this cache {' or '.join(able) or 'none'}: there are `{device}` and "
            f"`{type(parts.attention).__name__}`."
        )
    return supported and requested is not False
