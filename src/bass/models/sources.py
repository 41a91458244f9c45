"""The checkpoint tensors of each parameter: name maps and fusions as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor


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


def grouped_rows(heads: int, kv_heads: int, head_dim: int) -> np.ndarray:
    """Rows of all queries, then all keys, then all values, in a fused tensor in which each head of
    keys and values follows its query heads: int [rows].
    """
    rows = np.arange((heads + 2 * kv_heads) * head_dim)
    groups = rearrange(rows, "(group head dim) -> group head dim", group=kv_heads, dim=head_dim)
    return np.concatenate([groups[:, part].ravel() for part in (slice(-2), -2, -1)])


def with_bias(
    name: str,
    theirs: Sequence[str],
    sizes: Sequence[int],
    rows: np.ndarray | None = None,
    bias: bool = True,
) -> dict[str, WeightSource]:
    """`name`.weight and, with `bias`, `name`.bias, from the checkpoint's modules `theirs`.

    sizes: rows of each. rows: int [rows], their order in the parameter.
    """
    kinds = ("weight", "bias") if bias else ("weight",)
    return {
        f"{name}.{kind}": WeightSource(
            tuple(f"{part}.{kind}" for part in theirs), tuple(sizes), rows
        )
        for kind in kinds
    }


def plain(name: str, theirs: str, rows: int) -> dict[str, WeightSource]:
    """One parameter from one tensor of the checkpoint."""
    return {name: WeightSource((theirs,), (rows,))}


def gpt_sources(c: Any, qkv_rows: np.ndarray | None = None) -> dict[str, WeightSource]:
    """The names of GPT-2. `qkv_rows`: int [rows] of the fused tensor, if its order is not
    ours.
    """
    found = plain("embed", "transformer.wte.weight", c.vocab_size) | plain(
        "position_embed", "transformer.wpe.weight", c.n_positions
    )
    found |= with_bias("norm", ["transformer.ln_f"], (c.n_embd,))
    if not c.tie_word_embeddings:
        found |= plain("head.weight", "lm_head.weight", c.vocab_size)
    for i in range(c.n_layer):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        found |= with_bias(f"{ours}.attention_norm", [f"{theirs}.ln_1"], (c.n_embd,))
        found |= with_bias(f"{ours}.mlp_norm", [f"{theirs}.ln_2"], (c.n_embd,))
        found |= with_bias(
            f"{ours}.attention.qkv",
            [f"{theirs}.attn.c_attn"],
            ((c.n_head + 2 * c.kv_heads) * c.head_dim,),
            qkv_rows,
        )
        found |= with_bias(f"{ours}.attention.out", [f"{theirs}.attn.c_proj"], (c.n_embd,))
        found |= with_bias(f"{ours}.mlp.up", [f"{theirs}.mlp.c_fc"], (c.inner,))
        found |= with_bias(f"{ours}.mlp.down", [f"{theirs}.mlp.c_proj"], (c.n_embd,))
    return found


def shared_norm_sources(
    c: Any, qkv: Sequence[str], qkv_rows: np.ndarray
) -> dict[str, WeightSource]:
    """The names of GPT-J. `qkv`: modules of queries, keys and values; `qkv_rows`: int [rows]."""
    found = plain("embed", "transformer.wte.weight", c.vocab_size) | with_bias(
        "norm", ["transformer.ln_f"], (c.n_embd,)
    )
    if c.tie_word_embeddings:
        found |= plain("head_bias", "lm_head.bias", c.vocab_size)
    else:
        found |= with_bias("head", ["lm_head"], (c.vocab_size,))
    sizes = (3 * c.n_embd // len(qkv),) * len(qkv)
    for i in range(c.n_layer):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        found |= with_bias(f"{ours}.attention_norm", [f"{theirs}.ln_1"], (c.n_embd,))
        found |= with_bias(
            f"{ours}.attention.qkv",
            [f"{theirs}.attn.{name}" for name in qkv],
            sizes,
            qkv_rows,
            bias=False,
        )
        found |= with_bias(
            f"{ours}.attention.out", [f"{theirs}.attn.out_proj"], (c.n_embd,), bias=False
        )
        found |= with_bias(f"{ours}.mlp.up", [f"{theirs}.mlp.fc_in"], (c.inner,))
        found |= with_bias(f"{ours}.mlp.down", [f"{theirs}.mlp.fc_out"], (c.n_embd,))
    return found


LLAMA_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


GEMMA_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


REORDERED_NORMS = {
    "attention_norm": "post_attention_layernorm",
    "mlp_norm": "post_feedforward_layernorm",
}


def gated_sources(
    c: Any,
    norms: dict[str, str] = LLAMA_NORMS,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qkv_rows: np.ndarray | None = None,
) -> dict[str, WeightSource]:
    """The names of Llama, which most families with a gated MLP share.

    `norms`: the norms of a block, our name -> theirs. `qkv_rows`: rows of the stack [q, k, v], if
    the order of rotated dimensions is not ours.
    """
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    found = plain("embed", "model.embed_tokens.weight", c.vocab_size) | plain(
        "norm.weight", "model.norm.weight", c.hidden_size
    )
    if not c.tie_word_embeddings:
        found |= plain("head.weight", "lm_head.weight", c.vocab_size)
    for i in range(c.num_hidden_layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        for name, their_name in norms.items():
            found |= plain(f"{ours}.{name}.weight", f"{theirs}.{their_name}.weight", c.hidden_size)
        found |= with_bias(
            f"{ours}.attention.qkv",
            [f"{theirs}.self_attn.{p}_proj" for p in "qkv"],
            (q, kv, kv),
            qkv_rows,
            qkv_bias,
        )
        found |= with_bias(
            f"{ours}.attention.out", [f"{theirs}.self_attn.o_proj"], (c.hidden_size,), bias=out_bias
        )
        gate_up = [f"{theirs}.mlp.{p}_proj" for p in ("gate", "up")]
        found |= with_bias(
            f"{ours}.mlp.gate_up", gate_up, (c.intermediate_size,) * 2, bias=mlp_bias
        )
        found |= with_bias(
            f"{ours}.mlp.down", [f"{theirs}.mlp.down_proj"], (c.hidden_size,), bias=mlp_bias
        )
    return found


def fused_gate_up(c: Any) -> dict[str, WeightSource]:
    """Gates and ups that are one matrix in the checkpoint, too."""
    found: dict[str, WeightSource] = {}
    for i in range(c.num_hidden_layers):
        stored = f"model.layers.{i}.mlp.gate_up_proj.weight"
        found |= plain(f"blocks.{i}.mlp.gate_up.weight", stored, 2 * c.intermediate_size)
    return found


def without_mlps(found: dict[str, WeightSource], layers: Sequence[int]) -> dict[str, WeightSource]:
    """The sources but for the MLPs of these layers."""
    mlps = tuple(f"blocks.{i}.mlp." for i in layers)
    return {name: source for name, source in found.items() if not name.startswith(mlps)}


def with_experts(
    found: dict[str, WeightSource],
    layers: Sequence[int],
    hidden: int,
    inner: int,
    count: int,
    module: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> dict[str, WeightSource]:
    """The sources with experts instead of a gated MLP in these layers.

    module: of the checkpoint's router `gate` and `experts`; names: the matrices of an expert.
    """
    kept, (gate, up, down) = without_mlps(found, layers), names
    for i in layers:
        ours, theirs = f"blocks.{i}.mlp", f"model.layers.{i}.{module}"
        experts = [f"{theirs}.experts.{e}" for e in range(count)]
        gate_up = tuple(f"{expert}.{name}.weight" for expert in experts for name in (gate, up))
        kept |= plain(f"{ours}.router.weight", f"{theirs}.gate.weight", count)
        kept[f"{ours}.experts.gate_up"] = WeightSource(gate_up, (inner,) * (2 * count))
        kept[f"{ours}.experts.down"] = WeightSource(
            tuple(f"{expert}.{down}.weight" for expert in experts), (hidden,) * count
        )
    return kept


def ungated_sources(
    c: Any,
    names: dict[str, str],
    attention_bias: bool,
    mlp_bias: bool,
    qkv_rows: np.ndarray | None = None,
) -> dict[str, WeightSource]:
    """The names of families with LayerNorm, an MLP without a gate, and separate projections.

    `names`: our modules -> theirs, of a block, and `norm` for the last one. `qkv_rows`: the rows of
    the stack [q, k, v], if their order is not ours. A head without a bias is included.
    """
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    size = (c.hidden_size,)
    found = plain("embed", "model.embed_tokens.weight", c.vocab_size)
    found |= with_bias("norm", [f"model.{names['norm']}"], size)
    if not c.tie_word_embeddings:
        found |= plain("head.weight", "lm_head.weight", c.vocab_size)
    for i in range(c.num_hidden_layers):
        ours, layer = f"blocks.{i}", f"model.layers.{i}"
        qkv = [f"{layer}.self_attn.{p}_proj" for p in "qkv"]
        found |= with_bias(f"{ours}.attention.qkv", qkv, (q, kv, kv), qkv_rows, bias=attention_bias)
        for name, theirs in names.items():
            rows = (c.intermediate_size,) if name == "mlp.up" else size
            bias = name.endswith("norm") or (attention_bias if "attention" in name else mlp_bias)
            if name != "norm":
                found |= with_bias(f"{ours}.{name}", [f"{layer}.{theirs}"], rows, bias=bias)
    return found


def fused_sources(
    c: Any,
    ends: dict[str, str],
    layers: str,
    attention: str,
    norms: dict[str, str],
    qkv_rows: np.ndarray,
    attention_bias: bool,
    mlp_bias: bool = True,
) -> dict[str, WeightSource]:
    """The names of GPT-NeoX and Falcon, with LayerNorm and an MLP without a gate.

    ends: the modules around the blocks, ours -> theirs. layers, attention: modules of theirs.
    norms: of a block, ours -> theirs. qkv_rows: the rows [q, k, v] of the fused tensor.
    """
    size, prefix = (c.hidden_size,), layers.partition(".")[0]
    found = plain("embed", f"{prefix}.{ends['embed']}.weight", c.vocab_size)
    found |= with_bias("norm", [f"{prefix}.{ends['norm']}"], size)
    if not c.tie_word_embeddings:
        found |= plain("head.weight", f"{ends['head']}.weight", c.vocab_size)
    products = {
        "attention.qkv": (f"{attention}.query_key_value", (len(qkv_rows),), attention_bias),
        "attention.out": (f"{attention}.dense", size, attention_bias),
        "mlp.up": ("mlp.dense_h_to_4h", (c.intermediate_size,), mlp_bias),
        "mlp.down": ("mlp.dense_4h_to_h", size, mlp_bias),
    }
    for i in range(c.num_hidden_layers):
        for name, theirs in norms.items():
            found |= with_bias(f"blocks.{i}.{name}", [f"{layers}.{i}.{theirs}"], size)
        for name, (theirs, sizes, bias) in products.items():
            rows = qkv_rows if name == "attention.qkv" else None
            found |= with_bias(f"blocks.{i}.{name}", [f"{layers}.{i}.{theirs}"], sizes, rows, bias)
    return found


def qk_norm_sources(
    c: Any, names: tuple[str, str] = ("q_norm", "k_norm")
) -> dict[str, WeightSource]:
    """The weights of each layer's `HeadNorm`: q_norm repeated for each head of q, k_norm for each
    head of k. `names`: theirs.
    """
    of_q, of_k = rearrange(np.arange(2 * c.head_dim), "(part dim) -> part dim", part=2)
    rows = np.concatenate(
        (
            repeat(of_q, "dim -> (heads dim)", heads=c.num_attention_heads),
            repeat(of_k, "dim -> (kv_heads dim)", kv_heads=c.num_key_value_heads),
        )
    )
    return {
        f"blocks.{i}.attention.qk_norm.weight": WeightSource(
            tuple(f"model.layers.{i}.self_attn.{name}.weight" for name in names),
            (c.head_dim,) * 2,
            rows,
        )
        for i in range(c.num_hidden_layers)
    }


def projection_norm_sources(c: Any) -> dict[str, WeightSource]:
    """The weights of each layer's `ProjectionNorm`."""
    sizes = {"q": c.num_attention_heads * c.head_dim, "k": c.num_key_value_heads * c.head_dim}
    return {
        f"blocks.{i}.attention.qk_norm.{part}_norm.weight": WeightSource(
            (f"model.layers.{i}.self_attn.{part}_norm.weight",), (size,)
        )
        for i in range(c.num_hidden_layers)
        for part, size in sizes.items()
    }
