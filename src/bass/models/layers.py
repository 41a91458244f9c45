"""Layers and blocks of all families. Parameters start empty: `CheckpointIndex.load` or a trainer
fills them.

Layers define `__call__` themselves: that of `nn.Module` first looks for hooks, which takes 5 % of a
small decoder's step on a CPU.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.interfaces import Attend
from bass.models.rope import RopeScaling, Rotary
from bass.ops.activation import ACTIVATIONS
from bass.ops.experts import Experts, Mixture
from bass.ops.linear import (
    Linear,
    Operand,
    Product,
    activated_linear,
    gated_linear,
    linear,
    project_qkv,
)
from bass.ops.norms import HeadNorm, ProjectionNorm
from bass.ops.residual import Residual
from bass.records import Projection, Rotation

Hidden = Float[Tensor, "batch window hidden"] | Operand  # a tensor, or a norm that is still lazy


@dataclass(frozen=True)
class LayerFactory:
    """The config of a decoder's layers, their device and type, and what they consist of.

    config: a `FamilyConfig`. norm_type: of the norms of the residual stream.
    """

    config: Any
    norm_type: Callable[..., nn.Module]
    device: torch.device
    dtype: torch.dtype

    @property
    def at(self) -> tuple[torch.device, torch.dtype]:
        """Device and type."""
        return self.device, self.dtype

    def empty(self, *shape: int) -> nn.Parameter:
        """A parameter without a module of its own."""
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=self.dtype))

    def linear(self, inputs: int, outputs: int, bias: bool = False) -> Linear:
        """A product."""
        return Linear(inputs, outputs, *self.at, bias)

    def norm(self, **options: bool) -> nn.Module:
        """A norm of the residual stream, with further options of its type."""
        c = self.config
        return self.norm_type(c.hidden_size, c.rms_norm_eps, *self.at, **options)

    def rotary(
        self, theta: float, trained: int, scaling: RopeScaling | None = None, dim: int | None = None
    ) -> Rotary:
        """Rotary positions of `dim` dimensions of each head, by default of all."""
        return Rotary(self.config.head_dim, theta, trained, scaling, *self.at, dim)

    def head_norm(self, offset: bool = False) -> HeadNorm:
        """A norm of each head of q and k; `offset`: as in `OffsetRMSNorm`."""
        heads, kv_heads, dim = self.config.heads
        return HeadNorm(heads + kv_heads, dim, self.config.rms_norm_eps, *self.at, offset)

    def projection_norm(self) -> ProjectionNorm:
        """A norm of all heads of q together, and of all heads of k."""
        return ProjectionNorm(self.config.heads, self.config.rms_norm_eps, *self.at)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one product (Shazeer, 2020)."""

    def __init__(self, make: LayerFactory, bias: bool = False) -> None:
        super().__init__()
        c = make.config
        self.gate_up = make.linear(c.hidden_size, 2 * c.intermediate_size, bias)
        self.down = make.linear(c.intermediate_size, c.hidden_size, bias)
        self.act = ACTIVATIONS[c.hidden_act]

    def __call__(self, x: Hidden) -> Product:
        return linear(gated_linear(x, self.gate_up, self.act), self.down)


class MLP(nn.Module):
    """down(act(up(x)))."""

    def __init__(self, make: LayerFactory, bias: bool = False) -> None:
        super().__init__()
        c = make.config
        self.up = make.linear(c.hidden_size, c.intermediate_size, bias)
        self.down = make.linear(c.intermediate_size, c.hidden_size, bias)
        self.act = ACTIVATIONS[c.hidden_act]

    def __call__(self, x: Hidden) -> Product:
        return linear(activated_linear(x, self.up, self.act), self.down)


class SparseMLP(nn.Module):
    """A mixture of `count` experts, each a gated MLP, of which `router` chooses a few for each
    token (Shazeer et al., 2017).
    """

    def __init__(
        self,
        make: LayerFactory,
        count: int,
        chosen: int,
        normalised: bool = True,
        inner: int | None = None,
        act: str | None = None,
        bias: bool = False,
    ) -> None:
        """`inner` and `act`: of each expert, by default of the config; others: of `Experts`."""
        super().__init__()
        c, how = make.config, ACTIVATIONS[act or make.config.hidden_act]
        self.router: nn.Module = make.linear(c.hidden_size, count, bias)
        sizes = c.hidden_size, inner or c.intermediate_size
        self.experts = Experts(count, chosen, *sizes, how, normalised, *make.at, bias)

    def __call__(self, x: Hidden) -> Mixture:
        return Mixture(x, self.router, self.experts)


class Attention(nn.Module):
    """Queries, keys and values in one product; rotary embedding, unless positions are learned;
    attention; output projection.
    """

    def __init__(
        self,
        make: LayerFactory,
        bias: bool = False,
        out_bias: bool | None = None,
        qk_norm: HeadNorm | ProjectionNorm | None = None,
        sinks: bool = False,
        inputs: int | None = None,
    ) -> None:
        """`bias`: of q, k and v, and of the output unless `out_bias` says otherwise.

        `qk_norm`: the norm of q and k before the rotary embedding. `sinks`: whether each query head
        has one (`AttentionRule.sinks`). `inputs`: the size of what it reads, if not that of the
        stream.
        """
        super().__init__()
        hidden, self.heads = make.config.hidden_size, make.config.heads
        count, kv_count, dim = self.heads
        self.qkv = make.linear(inputs or hidden, (count + 2 * kv_count) * dim, bias)
        self.out = make.linear(count * dim, hidden, bias if out_bias is None else out_bias)
        self.qk_norm = qk_norm
        self.sinks = make.empty(count) if sinks else None

    def project(self, x: Hidden, rotation: Rotation | None) -> Projection:
        """Queries, keys and values as partial sums, before the rotary embedding."""
        return project_qkv(x, self.qkv, self.heads, self.qk_norm, rotation, self.sinks)

    def __call__(self, x: Hidden, rotation: Rotation | None, attend: Attend, layer: int) -> Product:
        return linear(attend(layer, self.project(x, rotation)).flatten(-2), self.out)


class DecoderBlock(nn.Module):
    """Attention and an MLP, each with its norm. A subclass defines the order: what the attention
    reads of the residual stream, and how its output and the MLP's are added.
    """

    def __init__(self, make: LayerFactory, attention: Attention, mlp: Any, **options: bool) -> None:
        """`options`: of the norms."""
        super().__init__()
        self.attention_norm, self.attention = make.norm(**options), attention
        self.mlp_norm: Any = make.norm(**options)
        self.mlp = mlp

    def read(self, x: Residual) -> Hidden:
        """What the attention reads."""
        return x.normed(self.attention_norm)

    @abstractmethod
    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        """The stream after the block, with the output of the attention, which read `read`."""

    def project(self, x: Residual, rotation: Rotation | None) -> Projection:
        """Queries, keys and values of the block. A prefill needs no more of the last block."""
        return self.attention.project(self.read(x), rotation)

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        read = self.read(x)
        return self.added(x, read, self.attention(read, rotation, attend, layer))


class PreNorm(DecoderBlock):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        x = x.plus(attended)
        return x.plus(self.mlp(x.normed(self.mlp_norm)))


class PostNorm(DecoderBlock):
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def read(self, x: Residual) -> Hidden:
        return x.tensor()

    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        x = Residual(x.plus(attended).normed(self.attention_norm).tensor())
        return Residual(x.plus(self.mlp(x.tensor())).normed(self.mlp_norm).tensor())


class ReorderedNorm(DecoderBlock):
    """x + norm(attention(x)), then x + norm(mlp(x)) (OLMo 2)."""

    def read(self, x: Residual) -> Hidden:
        return x.tensor()

    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        x = x.plus(attended, through=self.attention_norm)
        return x.plus(self.mlp(x.tensor()), through=self.mlp_norm)


class Parallel(DecoderBlock):
    """x + attention(norm(x)) + mlp(norm(x)), with one norm or `two_norms`."""

    def __init__(
        self, make: LayerFactory, attention: Attention, mlp: Any, two_norms: bool = False
    ) -> None:
        super().__init__(make, attention, mlp)
        if not two_norms:
            self.mlp_norm = None

    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        read_by_mlp = read if self.mlp_norm is None else x.normed(self.mlp_norm)
        return x.plus(attended).plus(self.mlp(read_by_mlp))


class SandwichNorm(DecoderBlock):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))) (Gemma 2)."""

    def __init__(self, make: LayerFactory, attention: Attention, mlp: Any) -> None:
        super().__init__(make, attention, mlp)
        self.attention_out_norm, self.mlp_out_norm = make.norm(), make.norm()

    def added(self, x: Residual, read: Hidden, attended: Product) -> Residual:
        x = x.plus(attended, through=self.attention_out_norm)
        return x.plus(self.mlp(x.normed(self.mlp_norm)), through=self.mlp_out_norm)
