"""A mixture of experts: each row's output is the weighted sum of the few experts that it chose.

    p = softmax(x Rᵀ) ;  y = Σ_e∈top(p) w_e · down_e(act(gate_e(x)) · up_e(x))

w_e is p_e, or p_e over the sum of the chosen ones (Shazeer et al., 2017). On a GPU kernels choose,
sort and multiply without a read by the host, so a step can be a CUDA graph; only experts that some
row chose are read. Elsewhere torch does, expert by expert.
"""

from typing import Any, final

import torch
from jaxtyping import Float, Int, Num, UInt8
from torch import Tensor, nn

from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.ops.activation import IN_KERNELS, Activation, gate
from bass.ops.linear import Linear, Operand, Rows, Summed, dense, linear
from bass.ops.quantize import dequantized


class Experts(nn.Module):
    """The weights of a layer's experts: matrices of all experts, one below the other.

    gate_up: the gates of expert 0, its ups, the gates of expert 1 ... `chosen`: experts of a row.
    normalised: whether weights of the chosen experts add up to 1. bias: of both products.

    A matrix that a checkpoint has in MXFP4 stays so: its parameter holds codes of 4 bits
    [rows, in / 2], and `gate_up_scale` or `down_scale` their scales [in / 32, rows], both uint8 as
    `ops.quantize` has them.
    """

    gate_up_scale: nn.Parameter | None
    down_scale: nn.Parameter | None

    def __init__(
        self,
        count: int,
        chosen: int,
        hidden: int,
        inner: int,
        act: Activation,
        normalised: bool,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.count, self.chosen, self.normalised, self.act = count, chosen, normalised, act
        self.gate_up = nn.Parameter(
            torch.empty(count * 2 * inner, hidden, device=device, dtype=dtype)
        )
        self.down = nn.Parameter(torch.empty(count * hidden, inner, device=device, dtype=dtype))
        self.gate_up_scale = self.down_scale = None
        self.gate_up_bias, self.down_bias = (
            nn.Parameter(torch.empty(count * rows, device=device, dtype=dtype)) if bias else None
            for rows in (2 * inner, hidden)
        )


@final
class Mixture(Summed):
    """The weighted sum of each row's experts, computed by its reader.

    `router` gives a logit for each expert.
    """

    __slots__ = ("experts", "router")

    def __init__(
        self, x: Float[Tensor, "*rows hidden"] | Operand, router: nn.Module, experts: Experts
    ) -> None:
        super().__init__(x)
        self.router, self.experts = router, experts

    @property
    def by_kernel(self) -> bool:
        return _by_kernel(self.like, self.experts) and dispatch.few_rows(self.like)

    def tensor(self) -> Float[Tensor, "*rows hidden"]:
        like = self.like
        if _by_kernel(like, self.experts):
            return self._sums().sum(0).to(like.dtype).view(like.shape)
        rows = self.input().reshape(-1, like.shape[-1])
        logits = linear(rows, self.router).tensor()
        return weighted_sum(rows, logits, self.experts).view(like.shape)

    def partial_sums(self) -> Float[Tensor, "splits rows hidden"]:
        if _by_kernel(self.like, self.experts):
            return self._sums()
        return self.tensor().reshape(1, -1, self.like.shape[-1])

    def _sums(self) -> Float[Tensor, "chosen rows hidden"]:
        layer, rows = self.experts, self._rows()
        logits = linear(self.x, self.router).partial_sums()
        norm: tuple[Any, ...] = ()
        if rows.scale is not None:
            norm = rows.scale.squares, rows.x.shape[1], rows.scale.eps
        choice = kernels.experts.route(
            logits, layer.chosen, layer.normalised, self.like.dtype, *norm
        )
        return kernels.experts.experts(
            rows.x,
            choice,
            layer.gate_up,
            layer.down,
            layer.count,
            IN_KERNELS[layer.act],
            layer.gate_up_bias,
            layer.down_bias,
            layer.gate_up_scale,
            layer.down_scale,
        )

    def _rows(self) -> Rows:
        """The input; the kernels finish an RMSNorm that the router's product finishes, too."""
        if type(self.router) is Linear and isinstance(self.x, Operand):
            rows = self.x.rows(self.router)
            if rows.scale is None or rows.scale.sums is None:
                return rows
        return Rows(self.input().reshape(-1, self.like.shape[-1]))


def weighted_sum(
    x: Float[Tensor, "rows hidden"], logits: Float[Tensor, "rows experts"], layer: Experts
) -> Float[Tensor, "rows hidden"]:
    """The same by torch, one expert after the other."""
    chosen, weights = choose(logits, layer.chosen, layer.normalised)
    gate_up_bias, down_bias = (
        [None] * layer.count if bias is None else bias.view(layer.count, -1)
        for bias in (layer.gate_up_bias, layer.down_bias)
    )
    y = torch.zeros_like(x)
    for expert in chosen.unique().tolist():  # sync: no GPU comes here without gradients
        row, choice = (chosen == expert).nonzero(as_tuple=True)
        gate_up = _matrix(layer.gate_up, layer.gate_up_scale, layer.count, expert, x.dtype)
        inner = gate(dense(x[row], gate_up, gate_up_bias[expert]), layer.act)
        down = _matrix(layer.down, layer.down_scale, layer.count, expert, x.dtype)
        out = dense(inner, down, down_bias[expert]) * weights[row, choice, None]
        y = y.index_add(0, row, out.to(x.dtype))
    return y


def choose(
    logits: Float[Tensor, "rows experts"], count: int, normalised: bool
) -> tuple[Int[Tensor, "rows chosen"], Float[Tensor, "rows chosen"]]:
    """The experts with the largest logits, of equal ones the first, and their weights."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best, chosen = wide.sort(dim=-1, descending=True, stable=True)
    best, chosen = best[:, :count], chosen[:, :count]
    every = best if normalised else wide
    return chosen, (best - every.logsumexp(-1, keepdim=True)).exp()


def _by_kernel(x: Tensor, layer: Any) -> bool:
    """Whether kernels compute these rows, of a step or of a prefill."""
    if not (dispatch.use_kernels(x) and type(layer) is Experts and x.dtype in dispatch.DTYPES):
        return False
    weights = (layer.gate_up, layer.gate_up_scale), (layer.down, layer.down_scale)
    return (
        layer.act in IN_KERNELS
        and all(w.dtype == x.dtype or scale is not None for w, scale in weights)
        and not dispatch.has_gradient(x, *(w for w, _ in weights))
    )


def _matrix(
    weight: Num[Tensor, "rows width"],
    scale: UInt8[Tensor, "groups rows"] | None,
    count: int,
    expert: int,
    dtype: torch.dtype,
) -> Float[Tensor, "out in"]:
    """The matrix of one of `count` experts, dequantized."""
    codes = weight.view(count, -1, weight.shape[1])[expert]
    if scale is None:
        return codes
    scales, group = scale.view(len(scale), count, -1)[:, expert], 2 * weight.shape[1] // len(scale)
    return dequantized(codes, scales, None, group, dtype)
