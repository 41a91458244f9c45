"""Resolves the options of `load` to models and strategies, checked before any weight is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from bass import pair
from bass.api.kinds import KINDS
from bass.api.loading import Checkpoint, ModelCache, Models, ModelSpec
from bass.api.options import LoadOptions
from bass.api.resolve import make
from bass.attention import ON_CUDA
from bass.checkpoints.folder import DTYPES
from bass.drafters import NoDrafter
from bass.drafters.validity import layers_of
from bass.engine.drafter_context import check_features
from bass.engine.scorer import check_pairing
from bass.errors import OptionError, PairingError, PolicyError, check_integer, unknown_name
from bass.interfaces import (
    AttentionBackend,
    DraftLengthPolicy,
    DraftMethod,
    Quantization,
    StopRule,
    Verifier,
)
from bass.models.decoder import CausalDecoder
from bass.models.first_layers import FirstLayers
from bass.ops.dispatch import runs_kernels
from bass.own_modules import find_object

LOAD_FORMATS = ("auto", "dummy")
CHECKPOINTS = ("target", "draft", "lora", "draft_lora")  # options


@final
@dataclass(frozen=True)
class Strategies:
    """The strategies that a model pair runs with."""

    policy: DraftLengthPolicy[Any]
    cache: Any  # a class with `allocate`
    attention: AttentionBackend[Any, Any]
    verifier: Verifier
    drafter: DraftMethod
    stop_rule: StopRule | None = None


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
        target, draft = options.target, options.draft
        adapters = (options.lora, options.draft_lora)
        for name, folder in zip(CHECKPOINTS, (target, draft, *adapters), strict=True):
            if folder is not None and not isinstance(folder, str | Path):
                raise OptionError(
                    f"`{name}={folder!r}` must be the path of a checkpoint folder, or a hub id."
                )
            if folder == "":
                raise OptionError(
                    f"`{name}=''` is empty: give the path of a checkpoint folder, or a hub id."
                )
        check_integer("max_batch_size", options.max_batch_size, 1)
        if options.max_model_len is not None:
            check_integer("max_model_len", options.max_model_len, 2)
        policy = make("policy", _policy(options))
        check_max_length(policy)
        rule = None if options.stop_rule is None else make("stop_rule", options.stop_rule)
        named = make("drafter", options.drafter)
        # Autoregressive decoding loads no draft, even if one is named.
        method = NoDrafter() if policy.max_length == 0 else drafter_for(named, draft, rule)
        if target is None:
            target, draft = pair.TARGET, pair.DRAFT if draft is None else draft
        device = find_device(options.device)
        layout = layout_for(options.cache, options.attention, device)
        backend = backend_for(options.attention, layout, device)
        verifier = make("verifier", options.verifier)
        parts = Strategies(policy, layout, backend, verifier, method, rule)
        check_pairing(layout, type(backend), tuple(KINDS["attention"].registry.values()))
        backend.check(device)
        use_graphs(options.cuda_graphs, device, parts)  # raises if not supported
        ours, theirs = quantizations_for(
            options.quantization, options.draft_quantization, method, device
        )
        dtype = str(options.dtype).removeprefix("torch.")
        if dtype not in (*DTYPES, "auto"):
            raise unknown_name("dtype", dtype, [*DTYPES, "auto"])
        if options.load_format not in LOAD_FORMATS:
            raise unknown_name("load format", str(options.load_format), LOAD_FORMATS)
        dummy = options.load_format == "dummy"
        needed = method.needs_draft and draft is not None
        check_adapters(options, draft, method)
        lora, draft_lora = (None if one is None else str(one) for one in adapters)
        own = None if options.family is None else find_family(options.family)
        return cls(
            ModelSpec(str(target), device, dtype, ours, dummy, lora, own),
            ModelSpec(str(draft), device, dtype, theirs, dummy, draft_lora, own)
            if needed
            else None,
            parts,
            options.max_batch_size,
            options.cuda_graphs,
            options.max_model_len,
        )

    @property
    def models(self) -> tuple[ModelSpec, ModelSpec | None]:
        """The specs of the models; equal for plans that can share them."""
        return self.target, self.draft

    @property
    def folders(self) -> dict[str, str]:
        """The folders or hub ids that are read, by option: checkpoints and their adapters."""
        target, draft = self.models
        found = {"target": target.checkpoint, "lora": target.lora}
        if draft is not None:
            found |= {"draft": draft.checkpoint, "draft_lora": draft.lora}
        return {name: folder for name, folder in found.items() if folder is not None}

    @property
    def strategies(self) -> list[Any]:
        """Everything whose class may be the user's: parts, quantizations, and families."""
        models = [spec for spec in self.models if spec is not None]
        of_models = (part for spec in models for part in (spec.quantization, spec.family))
        return [*vars(self.parts).values(), *of_models]

    def read(self, cache: ModelCache | None = None) -> Models:
        """Load the models, or take them from `cache`."""
        if self.parts.drafter.needs_draft and self.draft is None:
            # first what is wrong with the target, if anything; no weights are read
            Checkpoint.read(self.target.checkpoint, dummy=True, family=self.target.family)
            raise PairingError(
                f"The target `{self.target.checkpoint}` needs a draft: give `draft=`, or "
                "`num_speculative_tokens=0` for autoregressive decoding."
            )
        models = (cache or ModelCache()).models(*self.models)
        check_features(self.parts.drafter, models.target.shape.layers)
        if first := layers_of(self.parts.drafter):
            FirstLayers.check(models.target, first)
        check_sinks(models, self.parts.attention)
        return models


def check_sinks(models: Models, backend: AttentionBackend[Any, Any]) -> None:
    """Raise a `PairingError` for a model with sinks, if the backend has none."""
    for decoder in (models.target, models.draft):
        if decoder is None or backend.supports_sinks:
            continue
        if any(rule.sinks for rule in decoder.shape.rules):
            raise PairingError(
                f"The attention backend `{type(backend).__name__}` has no sinks, which "
                f"`{decoder.config.model_type}` needs: leave the choice to "
                '`attention="auto"`, or let its `run` support them (`supports_sinks`).'
            )


def _policy(options: LoadOptions) -> Any:
    """The policy, by default `bass`, or the fixed one for `num_speculative_tokens`."""
    k = options.num_speculative_tokens
    if k is None:
        return "bass" if options.policy is None else options.policy
    if options.policy is not None:
        raise OptionError(
            "`num_speculative_tokens` is short for the fixed policy and contradicts "
            f"`policy={options.policy!r}`: give one of them."
        )
    if not isinstance(k, int) or isinstance(k, bool):
        raise OptionError(f"`num_speculative_tokens={k!r}` must be an integer >= 0.")
    return {"class_path": "fixed", "init_args": {"k": k}}


def check_max_length(policy: DraftLengthPolicy[Any]) -> None:
    """Raise `PolicyError` for a policy without a valid `max_length`."""
    most = getattr(policy, "max_length", None)
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or not 0 <= most < 2**31:
        raise PolicyError(
            f"`{type(policy).__name__}.max_length` is {most!r:.60}: a policy must declare its "
            "longest draft, an integer from 0 to 2^31 - 1."
        )


def layout_for(cache: str | type, attention: Any, device: torch.device) -> type:
    """The cache class for `cache=`; "auto": the layout with the fastest default attention on the
    device (docs/log).
    """
    if cache == "auto":
        cache = "split" if runs_kernels(device) and attention == "auto" else "padded"
    return make("cache", cache)


def backend_for(attention: Any, cache: Any, device: torch.device) -> AttentionBackend[Any, Any]:
    """The attention backend for `attention=`; "auto": the first that reads the cache's view,
    starting with the kernels on a GPU.
    """
    if attention != "auto":
        return make("attention", attention)
    registered: dict[str, Any] = dict(KINDS["attention"].registry)
    kernels = ON_CUDA if runs_kernels(device) else ()
    for backend in (*(registered[name] for name in kernels), *registered.values()):
        if backend.view_type is cache.view_type:
            return backend()
    raise PairingError(
        f"No registered attention backend reads the view of `{cache.__name__}`: give `attention=`."
    )


def drafter_for(
    method: DraftMethod, draft: str | Path | None, rule: StopRule | None
) -> DraftMethod:
    """The drafter; raises if it does not use a given draft model or stop rule."""
    if isinstance(method, NoDrafter):
        raise OptionError(
            "A drafter that drafts nothing is autoregressive decoding: give "
            "`num_speculative_tokens=0` instead."
        )
    if draft is not None and not method.needs_draft:
        raise OptionError(
            f"`draft={str(draft)!r}` would not be used by the drafter: leave it out, or give "
            "`drafter='model'`."
        )
    if rule is not None and not method.obeys_stop_rules:
        raise OptionError(
            f"`stop_rule={rule!r}` would not be used: `{type(method).__name__}` does not apply "
            "stop rules; leave it out."
        )
    return method


def quantizations_for(
    quantization: Any, draft_quantization: Any, method: DraftMethod, device: torch.device
) -> tuple[Quantization | None, Quantization | None]:
    """The quantizations of target and draft.

    `draft_quantization=None` means the target's.
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


def check_adapters(options: LoadOptions, draft: str | Path | None, method: DraftMethod) -> None:
    """Raise `OptionError` for an adapter that would not be used."""
    for name, adapter in (("lora", options.lora), ("draft_lora", options.draft_lora)):
        if adapter is None:
            continue
        if options.load_format == "dummy":
            raise OptionError(
                f"`{name}={str(adapter)!r}` would not be used: random weights take no adapter; "
                "leave it out, or leave out `load_format`."
            )
        if name == "lora" or method.needs_draft:
            continue
        autoregressive = isinstance(method, NoDrafter)  # loads no draft, even if one is named
        if not autoregressive or draft is None:
            why = (
                "no `draft` is given"
                if autoregressive
                else f"`{type(method).__name__}` runs no draft model"
            )
            raise OptionError(
                f"`draft_lora={str(adapter)!r}` would not be used: {why}; leave it out."
            )


def find_family(spec: Any) -> type[CausalDecoder]:
    """The decoder class for `family=`: a class, or "package.module:Class"."""
    found = spec
    if isinstance(spec, str):
        module, colon, name = spec.partition(":")
        if not (module and colon and name):
            raise OptionError(
                f"`family={spec!r}` names no class: give `package.module:Class`, a subclass of "
                "`bass.models.decoder.CausalDecoder`."
            )
        try:
            found = find_object(module, name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's module may raise any error
            raise OptionError(
                f"Cannot load the family `{spec}` ({type(error).__name__}: {error}): give an "
                "importable `package.module:Class`."
            ) from error
    if not (isinstance(found, type) and issubclass(found, CausalDecoder)):
        raise OptionError(
            f"`family={spec!r:.200}` is no model family: give a subclass of "
            "`bass.models.decoder.CausalDecoder`, or its `package.module:Class`."
        )
    if not isinstance(getattr(getattr(found, "config_type", None), "model_type", None), str):
        raise OptionError(
            f"The family `{found.__name__}` has no `config_type` with a `model_type`: give it one, "
            "as docs/extend/model.md shows."
        )
    return found


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
    if found.type == "cpu" and torch.device(device).index:
        raise OptionError(f"`device={device!r}` does not exist: the processor is `cpu`.")
    if found.type not in ("cpu", "cuda"):
        raise OptionError(f"`device={device!r}` is not supported: give `cpu`, `cuda`, or `auto`.")
    return found


def use_graphs(requested: str | bool, device: torch.device, parts: Strategies) -> bool:
    """Whether steps run as CUDA graphs for `cuda_graphs=`; "auto": where device and backend support
    it.
    """
    if requested not in ("auto", "lazy", True, False):
        raise OptionError(f"`cuda_graphs={requested!r}` must be `auto`, `lazy`, True or False.")
    supported = device.type == "cuda" and parts.attention.capturable
    if requested is True and not supported:
        if device.type != "cuda":
            raise OptionError(
                f"`cuda_graphs=True` needs a CUDA device, and the models are on `{device}`: leave "
                "it out."
            )
        backends: dict[str, Any] = dict(KINDS["attention"].registry)
        view = parts.cache.view_type
        valid = [n for n, b in backends.items() if b.view_type is view and b.capturable]
        raise OptionError(
            f"`{type(parts.attention).__name__}` reads from the host, which a CUDA graph cannot "
            "capture: give `cuda_graphs=False`, "
            f"or another `attention=` for this cache: {', '.join(valid) or 'none is registered'}."
        )
    return supported and requested is not False
