"""Which parts of a model use hand-written kernels, and why the others do not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from bass.attention.kernels import KernelBackend
from bass.caches import CACHES, SplitCache
from bass.models.decoder import CausalDecoder
from bass.models.layers import MLP, GatedMLP, Parallel, PreNorm
from bass.models.rope import Rotary
from bass.ops import dispatch, kv_store, residual
from bass.ops.activation import IN_KERNELS
from bass.ops.attention import FUSED_DIMS
from bass.ops.experts import Experts
from bass.ops.group_quantized import GroupQuantizedLinear
from bass.ops.linear import Linear, QuantizedLinear
from bass.ops.norms import HeadNorm, ProjectionNorm
from bass.records import DecoderShape

FUSED = "five launches"
LINEAR = (Linear, QuantizedLinear, GroupQuantizedLinear, Experts)
NO_PART = (nn.Identity, nn.ModuleList, Rotary)


@final
@dataclass(frozen=True)
class Setting:
    """Where a model runs: the device's capability, the compute type, cache class and backend."""

    capability: dispatch.Capability
    dtype: torch.dtype
    cache: Any
    attention: Any

    @property
    def why_none(self) -> str | None:
        """Why no part of any model uses kernels; None if some may."""
        if self.capability.triton is not None:
            return self.capability.triton.reason
        if self.dtype not in dispatch.DTYPES:
            return f"no kernel computes in {_name(self.dtype)}"
        return None


def by_part(decoder: CausalDecoder, setting: Setting) -> dict[str, str | None]:
    """For each part of the model, why torch computes it in a decoding step; None if a kernel does.

    `FUSED` is the path of five launches per block on Hopper (four where attention and MLP read one
    norm), for up to 16 rows.
    """
    if (reason := setting.why_none) is not None:
        return dict.fromkeys((*PARTS, FUSED), reason)
    reasons = {part: why(decoder, setting) for part, why in PARTS.items()}
    return reasons | {FUSED: next(_against_fusion(decoder, setting), None)}


def lines(decoder: CausalDecoder, setting: Setting, device: torch.device) -> list[str]:
    """`bass info`'s lines about the kernels of a model."""
    if (reason := setting.why_none) is not None:
        return [f"{'kernels':20}off: {reason}"]
    how = f"{_name(setting.dtype)}, `{_known(setting.cache)}` cache"
    return [f"{'kernels':20}on {device}, {how}"] + [
        f"  {part:18}{'yes' if reason is None else f'no: {reason}'}"
        for part, reason in by_part(decoder, setting).items()
    ]


def in_short(decoder: CausalDecoder, setting: Setting) -> str:
    """The same in short, for the line below a run."""
    if (reason := setting.why_none) is not None:
        return f"off ({reason})"
    left = [f"{part} ({reason})" for part, reason in by_part(decoder, setting).items() if reason]
    return "all" if not left else f"all but {', '.join(left)}"


def _products(decoder: CausalDecoder, setting: Setting) -> str | None:
    for layer in _modules(decoder, GroupQuantizedLinear):
        if not layer.in_kernel:
            return f"no kernel has groups of {layer.group} in {layer.weight.shape[1]} columns"
    return _foreign(decoder, is_norm=False)


def _norms(decoder: CausalDecoder, setting: Setting) -> str | None:
    if any(True for _ in _modules(decoder, ProjectionNorm)):
        return "no kernel computes a norm over all heads"
    return _foreign(decoder, is_norm=True)


def _keys_and_values(decoder: CausalDecoder, setting: Setting) -> str | None:
    if setting.cache not in CACHES.values():
        return f"`{_known(setting.cache)}` stores them without a kernel"
    if decoder.shape.head_dim % 2:
        return f"heads have {decoder.shape.head_dim} dimensions, an odd number"
    unknown = [n for n in _modules(decoder, HeadNorm) if n.scale not in kv_store.SCALES]
    return "a norm of heads has an unsupported scale" if unknown else None


def _attention(decoder: CausalDecoder, setting: Setting) -> str | None:
    if isinstance(setting.attention, KernelBackend):
        return None
    return f"backend `{type(setting.attention).__name__}` uses no kernel of bass"


def _activations(decoder: CausalDecoder, setting: Setting) -> str | None:
    mlps = _modules(decoder, MLP | GatedMLP | Experts)
    unknown = [mlp for mlp in mlps if mlp.act not in IN_KERNELS]
    return f"no kernel computes `{unknown[0].act.__name__}`" if unknown else None


Why = Callable[[CausalDecoder, Setting], str | None]
PARTS: dict[str, Why] = {
    "products": _products,
    "norms": _norms,
    "keys and values": _keys_and_values,
    "attention": _attention,
    "activations": _activations,
}


def _against_fusion(decoder: CausalDecoder, setting: Setting) -> Iterator[str]:
    """The reasons against five launches a block, the most general first."""
    shape: DecoderShape = decoder.shape
    if setting.capability.hopper is not None:
        yield setting.capability.hopper.reason
    if setting.dtype != torch.bfloat16:
        yield f"the model computes in {_name(setting.dtype)}, not bfloat16"
    if setting.cache is not SplitCache:
        yield f"the cache is `{_known(setting.cache)}`, not `split`"
    for block in decoder.blocks:
        if type(block) not in (PreNorm, Parallel):
            yield f"the block is `{type(block).__name__}`, not `PreNorm` or `Parallel`"
            break
    if any(True for _ in _modules(decoder, Experts)):
        yield "its experts have launches of their own"
    if any(True for _ in _modules(decoder, QuantizedLinear | GroupQuantizedLinear)):
        yield "weights are quantized"
    for why in (_products, _norms):
        if (reason := why(decoder, setting)) is not None:
            yield reason
    if shape.head_dim not in FUSED_DIMS:
        *most, last = map(str, FUSED_DIMS)
        yield f"heads have {shape.head_dim} dimensions, not {', '.join(most)} or {last}"


def _modules(decoder: CausalDecoder, kind: Any) -> Iterator[Any]:
    return (module for module in decoder.modules() if isinstance(module, kind))


def _foreign(decoder: CausalDecoder, is_norm: bool) -> str | None:
    """Why no kernel computes a layer or a norm: its class is unknown."""
    known = (*residual.KINDS, HeadNorm) if is_norm else LINEAR
    for name, module in decoder.named_modules():
        leaf = not any(True for _ in module.children()) and not isinstance(module, NO_PART)
        if leaf and ("norm" in name.split(".")[-1]) == is_norm and type(module) not in known:
            return f"no kernel computes `{type(module).__name__}`"
    return None


def _known(cache: Any) -> str:
    return next((name for name, known in CACHES.items() if known is cache), cache.__name__)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
