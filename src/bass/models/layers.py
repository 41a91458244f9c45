"""Layers and blocks of all families. Parameters start empty: `CheckpointIndex.load` or a trainer
fills them.

Layers define `__call__` themselves: that of `nn.Module` first looks for hooks, which takes 5 % of a
small decoder's step on a CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.interfaces import Attend
from bass.models.rope import RopeScaling, Rotary
from bass.ops.activation import ACTIVATIONS
from bass.ops.experts import Experts, Mixture, mixture
from bass.ops.linear import (
    Linear,
    Operand,
    Product,
    activated_linear,
    gated_linear,
    linear,
    project_qkv,
)
from bass.ops.norms import HeadNorm, ProjectionNorm, scaled
from bass.ops.residual import Residual
from bass.records import Projection, Rotation

Hidden = Float[Tensor, "batch window hidden"] | Operand  # a tensor, or a norm that is still lazy


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one product (Shazeer, 2020)."""

    def __init__(
        self,
        hidden: int,
        inner: int,
        act: str,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * inner, device, dtype, bias)
        self.down = Linear(inner, hidden, device, dtype, bias)
        self.act = ACTIVATIONS[act]

    def __call__(self, x: Hidden) -> Product:
        return linear(gated_linear(x, self.gate_up, self.act), self.down)


class MLP(nn.Module):
    """down(act(up(x)))."""

    def __init__(
        self,
        hidden: int,
        inner: int,
        act: str,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.up = Linear(hidden, inner, device, dtype, bias)
        self.down = Linear(inner, hidden, device, dtype, bias)
        self.act = ACTIVATIONS[act]

    def __call__(self, x: Hidden) -> Product:
        return linear(activated_linear(x, self.up, self.act), self.down)


class SparseMLP(nn.Module):
    """A mixture of experts, each a gated MLP, of which `router` chooses a few for each token
    (Shazeer et al., 2017).
    """

    def __init__(
        self,
        hidden: int,
        inner: int,
        act: str,
        count: int,
        chosen: int,
        normalised: bool,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
    ) -> None:
        """`inner`: of each of the `count` experts; the others as for `Experts`."""
        super().__init__()
        self.router: nn.Module = Linear(hidden, count, device, dtype, bias)
        self.experts = Experts(
            count, chosen, hidden, inner, ACTIVATIONS[act], normalised, device, dtype, bias
        )

    def __call__(self, x: Hidden) -> Mixture:
        return mixture(x, self.router, self.experts)


class Attention(nn.Module):
    """Queries, keys and values in one product; rotary embedding, unless positions are learned;
    attention; output projection.
    """

    def __init__(
        self,
        hidden: int,
        heads: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: HeadNorm | ProjectionNorm | None = None,
        sinks: bool = False,
    ) -> None:
        """`heads`: query heads, key-value heads, dimensions of each.

        `qk_norm`: the norm of q and k before the rotary embedding. `sinks`: whether each query head
        has one (`AttentionRule.sinks`).
        """
        super().__init__()
        self.heads = heads
        count, kv_count, dim = heads
        self.qkv = Linear(hidden, (count + 2 * kv_count) * dim, device, dtype, bias)
        self.out = Linear(count * dim, hidden, device, dtype, out_bias)
        self.qk_norm = qk_norm
        self.sinks = nn.Parameter(torch.empty(count, device=device, dtype=dtype)) if sinks else None

    def project(self, x: Hidden, rotation: Rotation | None) -> Projection:
        """Queries, keys and values as partial sums, before the rotary embedding."""
        return project_qkv(x, self.qkv, self.heads, self.qk_norm, rotation, self.sinks)

    def __call__(self, x: Hidden, rotation: Rotation | None, attend: Attend, layer: int) -> Product:
        return linear(attend(layer, self.project(x, rotation)).flatten(-2), self.out)


class DecoderBlock(nn.Module):
    """Attention and an MLP, each with its norm. A subclass defines the order of both:
    `__call__(x, rotation, attend, layer)` maps the residual stream to the next one.
    """

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: Attention,
        mlp_norm: nn.Module | None,
        mlp: GatedMLP | MLP | SparseMLP,
    ) -> None:
        """`mlp_norm` is None if attention and MLP share `attention_norm`."""
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm: Any = mlp_norm
        self.mlp = mlp

    def project(self, x: Residual, rotation: Rotation | None) -> Projection:
        """Queries, keys and values of the block. A prefill needs no more of the last block."""
        return self.attention.project(x.normed(self.attention_norm), rotation)


class PreNorm(DecoderBlock):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        x = x.plus(self.attention(x.normed(self.attention_norm), rotation, attend, layer))
        return x.plus(self.mlp(x.normed(self.mlp_norm)))


class PostNorm(DecoderBlock):
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def project(self, x: Residual, rotation: Rotation | None) -> Projection:
        return self.attention.project(x.tensor(), rotation)

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        x = x.plus(self.attention(x.tensor(), rotation, attend, layer))
        x = Residual(x.normed(self.attention_norm).tensor())
        return Residual(x.plus(self.mlp(x.tensor())).normed(self.mlp_norm).tensor())


class ReorderedNorm(DecoderBlock):
    """x + norm(attention(x)), then x + norm(mlp(x)) (OLMo 2)."""

    def project(self, x: Residual, rotation: Rotation | None) -> Projection:
        return self.attention.project(x.tensor(), rotation)

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        attended = self.attention(x.tensor(), rotation, attend, layer)
        x = x.plus(attended, through=self.attention_norm)
        return x.plus(self.mlp(x.tensor()), through=self.mlp_norm)


class Parallel(DecoderBlock):
    """x + attention(norm(x)) + mlp(norm(x)), with one norm or two."""

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        read = x.normed(self.attention_norm)
        read_by_mlp = read if self.mlp_norm is None else x.normed(self.mlp_norm)
        attended = self.attention(read, rotation, attend, layer)
        return x.plus(attended).plus(self.mlp(read_by_mlp))


class SandwichNorm(DecoderBlock):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))) (Gemma 2)."""

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: Attention,
        attention_out_norm: nn.Module,
        mlp_norm: nn.Module,
        mlp: GatedMLP | MLP,
        mlp_out_norm: nn.Module,
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mlp)
        self.attention_out_norm, self.mlp_out_norm = attention_out_norm, mlp_out_norm

    def __call__(
        self, x: Residual, rotation: Rotation | None, attend: Attend, layer: int
    ) -> Residual:
        attended = self.attention(x.normed(self.attention_norm), rotation, attend, layer)
        x = x.plus(attended, through=self.attention_out_norm)
        return x.plus(self.mlp(x.normed(self.mlp_norm)), through=self.mlp_out_norm)


class LayerFactory:
    """Makes the layers of a decoder in the sizes of its config, on its device, in its type."""

    def __init__(
        self,
        config: Any,
        norm_type: Callable[..., nn.Module],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`config`: a `FamilyConfig`. `norm_type`: of the norms of the residual stream."""
        self.norm_type, self.device, self.dtype = norm_type, device, dtype
        self.heads, self.at = config.heads, (device, dtype)
        self.hidden, self.inner, self.act, self.eps = map(
            config.common, ("hidden_size", "intermediate_size", "hidden_act", "rms_norm_eps")
        )

    def empty(self, *shape: int) -> nn.Parameter:
        """A parameter without a module of its own."""
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=self.dtype))

    def linear(self, inputs: int, outputs: int, bias: bool = False) -> Linear:
        """A product outside of the blocks."""
        return Linear(inputs, outputs, *self.at, bias)

    def norm(self, **options: bool) -> nn.Module:
        """A norm of the residual stream, with further options of its type."""
        return self.norm_type(self.hidden, self.eps, *self.at, **options)

    def rotary(
        self, theta: float, trained: int, scaling: RopeScaling | None = None, dim: int | None = None
    ) -> Rotary:
        """Rotary positions of `dim` dimensions of each head, by default of all."""
        return Rotary(self.heads[2], theta, trained, scaling, *self.at, dim)

    def head_norm(self, scale: Callable[..., Tensor] = scaled) -> HeadNorm:
        """A norm of each head of q and k."""
        heads, kv_heads, dim = self.heads
        return HeadNorm(heads + kv_heads, dim, self.eps, *self.at, scale)

    def projection_norm(self) -> ProjectionNorm:
        """A norm of all heads of q together, and of all heads of k."""
        return ProjectionNorm(self.heads, self.eps, *self.at)

    def attention(
        self,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: HeadNorm | ProjectionNorm | None = None,
        sinks: bool = False,
        kind: type[Attention] = Attention,
    ) -> Attention:
        """Attention, with a bias of q, k and v, and one of the output, if requested."""
        return kind(self.hidden, self.heads, *self.at, bias, out_bias, qk_norm, sinks)

    def mlp(self, bias: bool = True) -> MLP:
        """An MLP without a gate."""
        return MLP(self.hidden, self.inner, self.act, *self.at, bias)

    def gated_mlp(self, bias: bool = False) -> GatedMLP:
        """Llama's MLP."""
        return GatedMLP(self.hidden, self.inner, self.act, *self.at, bias)

    def experts(
        self,
        count: int,
        chosen: int,
        normalised: bool = True,
        inner: int | None = None,
        act: str | None = None,
        bias: bool = False,
    ) -> SparseMLP:
        """A mixture of `count` gated MLPs, by default of the MLP's width and activation.

        Raises `CheckpointError` if a token cannot choose so many.
        """
        if chosen > count:
            raise CheckpointError(
                f"config.json has {chosen} of {count} experts for each token: download the "
                "checkpoint again."
            )
        sizes = self.hidden, inner or self.inner, act or self.act
        return SparseMLP(*sizes, count, chosen, normalised, *self.at, bias)
