"""The checkpoint tensors of each parameter: names and fusions as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn

from bass.ops.experts import Experts
from bass.ops.norms import HeadNorm, OffsetRMSNorm


@dataclass(frozen=True)
class WeightSource:
    """A parameter as a stack of the checkpoint's `tensors`, of `sizes` rows each, along their first
    axis.

    rows: row i of the parameter is row `rows[i]` of the stack; None: row i. Every row of the stack
    occurs at least once. transposed: the tensors are stored [in, out] (GPT-2's Conv1D). stacked: a
    tensor has one axis more, over this many matrices or vectors (experts). plus: the parameter is
    the stored number plus this (Nemotron's norms).
    """

    tensors: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: np.ndarray | None = None
    transposed: bool = False
    stacked: int = 0
    plus: float = 0.0

    def shapes(self, parameter: torch.Size) -> list[tuple[int, ...]]:
        """The shape of each tensor in the checkpoint, for a parameter of this shape."""
        rows = [size // max(self.stacked, 1) for size in self.sizes]
        stored = [(size, *parameter[1:]) for size in rows]
        stored = [shape[::-1] for shape in stored] if self.transposed else stored
        return [(self.stacked, *shape) for shape in stored] if self.stacked else stored

    def fill(self, parameter: Tensor, parts: Sequence[Tensor]) -> None:
        """Copy the checkpoint's tensors, of any device and dtype, into the parameter."""
        parts = [part.mT if self.transposed else part for part in parts]
        if self.stacked:
            parts = [part.flatten(0, 1) for part in parts]
        if self.rows is None:
            for ours, part in zip(parameter.split(self.sizes), parts, strict=True):
                ours.copy_(part)
        else:
            stack = parts[0] if len(parts) == 1 else torch.cat(list(parts))
            parameter.copy_(stack[torch.as_tensor(self.rows)])
        if self.plus:
            parameter.add_(self.plus)

    def split(self, parameter: Tensor) -> list[Tensor]:
        """The tensors of a checkpoint: the inverse of `fill`."""
        if self.plus:
            parameter = parameter - self.plus
        if self.rows is not None:
            first = np.unique(self.rows, return_index=True)[1]
            parameter = parameter[torch.as_tensor(first, device=parameter.device)]
        parts = list(parameter.split(self.sizes))
        if self.stacked:
            parts = [part.unflatten(0, (self.stacked, -1)) for part in parts]
        return [part.mT if self.transposed else part for part in parts]


def head_rows(order: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    """Rows of a stack [q, k, v] with the dimensions of each head of q and k in `order`."""
    rows = rearrange(
        np.arange((heads + 2 * kv_heads) * len(order)), "(head dim) -> head dim", dim=len(order)
    )
    rows[: heads + kv_heads] = rows[: heads + kv_heads, order]
    return rearrange(rows, "head dim -> (head dim)")


def fused_rows(blocks: int, rows: int, order: str = "qkv") -> np.ndarray:
    """Rows of all queries, then all keys, then all values, in a fused tensor: int [rows].

    The tensor has `blocks` blocks, each with its share of all three in `order`.
    """
    stored = rearrange(np.arange(rows), "(block part row) -> part block row", block=blocks, part=3)
    return rearrange(
        stored[[order.index(part) for part in "qkv"]], "part block row -> (part block row)"
    )


def repeated_rows(heads: int, kv_heads: int, head_dim: int) -> np.ndarray:
    """Rows of the stack [q, k] of two norms of a head, repeated for each head: int [rows]."""
    of_q, of_k = rearrange(np.arange(2 * head_dim), "(part dim) -> part dim", part=2)
    return np.concatenate((np.tile(of_q, heads), np.tile(of_k, kv_heads)))


def grouped_rows(heads: int, kv_heads: int, head_dim: int) -> np.ndarray:
    """Rows of all queries, then all keys, then all values, in a fused tensor in which each head of
    keys and values follows its query heads: int [rows].
    """
    rows = np.arange((heads + 2 * kv_heads) * head_dim)
    groups = rearrange(rows, "(group head dim) -> group head dim", group=kv_heads, dim=head_dim)
    return np.concatenate([groups[:, part].ravel() for part in (slice(-2), -2, -1)])


# The checkpoint's names of a decoder's modules, to which `.weight` and `.bias` are added, or of its
# parameters. Several names: their tensors are stacked. {}: one for each expert. Those of a block
# follow the name of `blocks` and its number. A table may name more modules than a decoder has.
Names = dict[str, str | tuple[str, ...]]
LLAMA: Names = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm",
    "head": "lm_head",
    "head_bias": "lm_head.bias",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.qk_norm": ("self_attn.q_norm", "self_attn.k_norm"),  # a `HeadNorm`
    "attention.qk_norm.q_norm": "self_attn.q_norm",  # a `ProjectionNorm`
    "attention.qk_norm.k_norm": "self_attn.k_norm",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate",
    "mlp.experts.gate_up": ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"),
    "mlp.experts.down": "mlp.experts.{}.down_proj.weight",
}
SANDWICH: Names = {  # norms around each half of a block (Gemma)
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
REORDERED: Names = {  # norms behind each half (OLMo 2)
    "attention_norm": "post_attention_layernorm",
    "mlp_norm": "post_feedforward_layernorm",
}
GPT: Names = {
    "embed": "transformer.wte.weight",
    "position_embed": "transformer.wpe.weight",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "head_bias": "lm_head.bias",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def named_sources(decoder: Any, names: Names) -> dict[str, WeightSource]:
    """The source of each parameter of a decoder, by the checkpoint's names of its modules."""
    (heads, kv_heads, dim), qkv_rows = decoder.config.heads, decoder.config.qkv_rows
    found: dict[str, WeightSource] = {}
    for name, parameter in decoder.named_parameters():
        path, _, own = name.rpartition(".")
        module, prefix, short = decoder.get_submodule(path), "", name
        if name.startswith("blocks."):
            _, layer, short = name.split(".", 2)
            prefix = f"{names['blocks']}.{layer}."
        layer_name = short.removesuffix(f".{own}")
        stored = names.get(short, names.get(layer_name))
        assert stored, f"`{type(decoder).__name__}.names` has no `{layer_name}`"
        tensors = [stored] if isinstance(stored, str) else [*stored]
        if short not in names:
            tensors = [f"{tensor}.{own}" for tensor in tensors]
        if isinstance(module, Experts) and "{}" in tensors[0]:
            tensors = [tensor.format(e) for e in range(module.count) for tensor in tensors]
        rows, sizes = None, [len(parameter) // len(tensors)] * len(tensors)
        if isinstance(module, HeadNorm):
            rows, sizes = repeated_rows(heads, kv_heads, dim), [dim, dim]
        elif layer_name == "attention.qkv":
            rows = qkv_rows
            if len(tensors) == 3:
                sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
        found[name] = WeightSource(tuple(prefix + t for t in tensors), tuple(sizes), rows)
    return found


def stored_tensors(module: nn.Module, sources: Mapping[str, WeightSource]) -> dict[str, Tensor]:
    """The checkpoint's tensors of all parameters, by name."""
    return {
        tensor: part
        for name, parameter in module.named_parameters()
        for tensor, part in zip(
            sources[name].tensors, sources[name].split(parameter.detach()), strict=True
        )
    }


def stored_shapes(
    module: nn.Module, sources: Mapping[str, WeightSource]
) -> dict[str, tuple[int, ...]]:
    """The shapes of these tensors."""
    found = dict[str, tuple[int, ...]]()
    for name, parameter in module.named_parameters():
        found |= zip(sources[name].tensors, sources[name].shapes(parameter.shape), strict=True)
    return found


def fill_with_random(module: nn.Module, own: str, generator: torch.Generator) -> None:
    """Fill a parameter with random values that keep the scale of the residual stream: norms scale
    by 1, biases are 0, and a product of normalized rows has variance 1.
    """
    parameter = module.get_parameter(own)
    if parameter.ndim > 1:
        parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
    else:
        parameter.fill_(0 if own.endswith("bias") or stores_distance(module) else 1)


@torch.no_grad()
def fill_all_with_random(decoder: nn.Module, generator: torch.Generator) -> None:
    """Fill all parameters so, and token ids with 0."""
    for name, parameter in decoder.named_parameters():
        path, _, own = name.rpartition(".")
        if parameter.is_floating_point():
            fill_with_random(decoder.get_submodule(path), own, generator)
        else:
            parameter.zero_()


def stores_distance(module: nn.Module) -> bool:
    """Whether a norm stores its weights as their distance from 1."""
    return isinstance(module, OffsetRMSNorm) or (isinstance(module, HeadNorm) and module.offset)
