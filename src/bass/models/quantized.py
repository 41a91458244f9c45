"""Linear layers in fewer bytes: weights in 8 bits with a scale for each output channel, and
activations with one for each token.

    scale[r] = max |x[r]| / L ;  q[r] = round(x[r] / scale[r])
    y[m, n]  = (Σ_k q_x[m, k] q_w[n, k]) · scale_x[m] · scale_w[n] + b[n]

with L the largest number of the type, 127 (int8) or 448 (e4m3).

A token's scale is its own, found as it is read, so that its result hangs neither on its batch mates
nor on calibration. The matrices of the blocks are quantized. Embedding, head (often the embedding
again), norms and biases stay as they are; but a draft's head, whose errors cost acceptance alone,
is quantized too (`quantize_head`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num, Shaped
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from bass.errors import BassError, OptionError, StrategyError, is_out_of_memory
from bass.interfaces import Quantization
from bass.models.decoder import CausalDecoder
from bass.models.layers import Linear
from bass.ops import dispatch

E4M3 = torch.float8_e4m3fn
LARGEST = {torch.int8: 127.0, E4M3: 448.0}
# of what is taken for the largest number of a row: a row of zeros is divided by it
SMALLEST = 1e-30
# numbers of a weight that are in the compute type at a time, where it is not multiplied in 8 bits
WIDENED = 1 << 24


def quantized_rows(
    x: Float[Tensor, "*rows size"], kind: torch.dtype
) -> tuple[Num[Tensor, "*rows size"], Float[Tensor, " *rows"]]:
    """Each row in `kind`, int8 or e4m3, half to even; and its scale, float32.

    Scaling a row by a power of 2 scales its scale alone.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    top = x.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    # a tensor: by a number, torch divides with the rounding of its reciprocal
    largest = torch.full_like(top, LARGEST[kind])
    scaled = x * (largest / top)  # by rounding it may pass L by a few millionths, and rounds to it
    return (scaled.round() if kind == torch.int8 else scaled).to(kind), (top / largest).squeeze(
        -1
    ).float()


@final
class QuantizedLinear(nn.Module):
    """y = x Wᵀ + b with W in 8 bits [out, in] and its `scale` [out].

    `activations`: the type that x is quantized to; None: as it is.
    """

    def __init__(
        self,
        weight: Num[Tensor, "out in"],
        scale: Float[Tensor, " out"],
        bias: Float[Tensor, " out"] | None,
        activations: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.activations = activations

    @classmethod
    def of(
        cls,
        weight: Float[Tensor, "out in"],
        bias: Float[Tensor, " out"] | None,
        kind: torch.dtype,
        activations: torch.dtype | None,
    ) -> "QuantizedLinear":
        """From a weight in full; a part of it at a time is in float32 meanwhile."""
        parts = [
            quantized_rows(part, kind)
            for part in weight.detach().split(max(1, WIDENED // weight.shape[1]))
        ]
        return cls(
            torch.cat([q for q, _ in parts]),
            torch.cat([scale for _, scale in parts]),
            bias,
            activations,
        )

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        rows = x.reshape(-1, x.shape[-1])
        kernels = dispatch.use_kernels(rows)
        if kernels and len(rows) <= _most_rows() and x.dtype != torch.float64:
            y = self._few(rows)
        elif self.activations is None:
            y = self._widened(rows)
        else:
            q, scale = (
                _rows_by_kernel(rows, self.activations)
                if kernels
                else quantized_rows(rows, self.activations)
            )
            y = scaled_product(q, self.weight, scale, self.scale, self.bias, x.dtype)
        return y.view(*x.shape[:-1], -1)

    def _few(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        """The rows of a decoding step, on a GPU."""
        from bass.kernels.triton import small_m_gemm

        q, scale = (x, None) if self.activations is None else _rows_by_kernel(x, self.activations)
        return small_m_gemm.added(
            small_m_gemm.linear(q, self.weight, self.bias, scale, self.scale, x.dtype), x.dtype
        )

    def _widened(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        """With the weight in x's type again, a part of its rows at a time."""
        count, y = max(1, WIDENED // self.weight.shape[1]), x.new_empty((len(x), len(self.weight)))
        wide = torch.promote_types(x.dtype, torch.float32)
        for first in range(0, len(self.weight), count):
            part = slice(first, first + count)
            weight = widened(self.weight[part], wide).mul_(self.scale[part, None]).to(x.dtype)
            y[:, part] = F.linear(x, weight, None if self.bias is None else self.bias[part])
        return y


def scaled_product(
    x: Num[Tensor, "rows in"],
    w: Num[Tensor, "out in"],
    x_scale: Float[Tensor, " rows"],
    w_scale: Float[Tensor, " out"],
    bias: Float[Tensor, " out"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "rows out"]:
    """(x wᵀ) · scales + b, for any number of rows.

    Sums of int8 are exact, those of e4m3 in float32 at least.
    """
    wide = torch.promote_types(dtype, torch.float32)
    if x.dtype == torch.int8:
        total = integer_product(x, w).to(wide)
    elif not x.is_cuda or any(size % 16 for size in w.shape):
        total = widened(x, wide) @ widened(w, wide).T
    elif dtype == torch.bfloat16:  # the one type that takes a scale for each row
        return torch.ops.aten._scaled_mm(
            x, w.T, x_scale[:, None], w_scale[None], bias=bias, out_dtype=dtype
        )
    else:
        one = torch.ones((), device=x.device)
        total = torch.ops.aten._scaled_mm(x, w.T, one, one, out_dtype=torch.float32).to(wide)
    y = total.mul_(x_scale[:, None]).mul_(w_scale)
    return (y if bias is None else y.add_(bias)).to(dtype)


def integer_product(
    x: Num[Tensor, "rows in"], w: Num[Tensor, "out in"]
) -> Shaped[Tensor, "rows out"]:
    """x wᵀ of int8, without rounding.

    A GPU's product takes 17 rows or more, and sizes that are multiples of 8.
    """
    if not x.is_cuda:
        return torch.ops.aten._int_mm(x, w.T)
    if any(size % 8 for size in w.shape):
        return x.double() @ w.double().T
    return torch.ops.aten._int_mm(F.pad(x, (0, 0, 0, max(0, 32 - len(x)))), w.T)[: len(x)]


def widened(q: Num[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The same numbers in `dtype`, float32 or float64.

    Of e4m3 a CPU takes the bits apart, 16 times as fast as torch's conversion: sign, exponent and
    mantissa, put where float16 has them, are the number over 256, subnormal ones too.
    """
    if q.dtype != E4M3 or not q.is_cpu:
        return q.to(dtype)
    # of the sign, copied on widening
    bits = q.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~(1 << 14))
    return bits.view(torch.float16).to(dtype).mul_(256)


def _rows_by_kernel(
    x: Float[Tensor, "rows size"], kind: torch.dtype
) -> tuple[Num[Tensor, "rows size"], Float[Tensor, " rows"]]:
    from bass.kernels.triton.quantize import quantize_rows

    return quantize_rows(x, kind)


def _most_rows() -> int:
    from bass.kernels.triton.small_m_gemm import MOST_ROWS

    return MOST_ROWS


@final
@dataclass(frozen=True)
class NoQuantization(Quantization):
    """Weights in the model's own type."""

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> Linear:
        layer = Linear(weight.shape[1], weight.shape[0], torch.device("meta"), weight.dtype)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        return layer


@final
@dataclass(frozen=True)
class Int8(Quantization):
    """Weights and activations in int8: vector-wise absmax, all columns alike (LLM.int8() keeps
    outliers in float16).
    """

    paper: ClassVar[str] = "Dettmers et al., 2022"

    def check(self, device: torch.device) -> None:
        _check_capability(device, (7, 5), "int8", "multiplies in int8")

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, torch.int8, torch.int8)


@final
@dataclass(frozen=True)
class Fp8(Quantization):
    """Weights and activations in e4m3, scaled as for `int8`; a CPU does the same arithmetic in
    float32.
    """

    paper: ClassVar[str] = "Micikevicius et al., 2022"

    def check(self, device: torch.device) -> None:
        _check_capability(device, (8, 9), "fp8", "multiplies in e4m3")

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, E4M3, E4M3)


@final
@dataclass(frozen=True)
class Int8Weight(Quantization):
    """Weights alone in int8: half the bytes of bfloat16 are read, products stay in the model's
    type.
    """

    paper: ClassVar[str] = "Krishnamoorthi, 2018"

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> QuantizedLinear:
        return QuantizedLinear.of(weight, bias, torch.int8, None)


QUANTIZATIONS: dict[str, type[Quantization]] = {
    "none": NoQuantization,
    "int8": Int8,
    "fp8": Fp8,
    "int8-weight": Int8Weight,
}


def _check_capability(device: torch.device, least: tuple[int, int], name: str, does: str) -> None:
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < least:
        raise OptionError(
            f"The quantization `{name}` {does}, which needs compute capability "
            f"{least[0]}.{least[1]}, and `{device}` has "
            f"{found[0]}.{found[1]}: give `int8-weight`, or leave it out."
        )


def quantizable(decoder: CausalDecoder) -> list[str]:
    """The names of the linear layers in the decoder's blocks."""
    names = [
        f"blocks.{name}" for name, layer in decoder.blocks.named_modules() if type(layer) is Linear
    ]
    if not names:
        raise OptionError(
            f"The blocks of `{type(decoder).__name__}` have no `bass.models.layers.Linear`: give "
            "no quantization."
        )
    return names


@torch.no_grad()
def quantize_layer(decoder: CausalDecoder, name: str, quantization: Quantization) -> None:
    """Put the quantized layer in the place of one of `quantizable`, whose weight is freed."""
    owner, _, own = name.rpartition(".")
    layer: Any = decoder.get_submodule(name)
    setattr(decoder.get_submodule(owner), own, _made(quantization, layer.weight, layer.bias))


@torch.no_grad()
def quantize_head(decoder: CausalDecoder, quantization: Quantization) -> CausalDecoder:
    """Quantize the head of a decoder, in place; the embedding, which it may have been tied to,
    stays as it is.
    """
    if isinstance(quantization, NoQuantization):
        return decoder
    if decoder.head is None:
        weight = decoder.embed.clone()  # which the quantization may overwrite
        decoder.head, decoder.head_bias = _made(quantization, weight, decoder.head_bias), None
    elif isinstance(decoder.head, Linear):
        decoder.head = _made(quantization, decoder.head.weight, decoder.head.bias)
    return decoder


def _made(
    quantization: Quantization, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> nn.Module:
    try:
        made = quantization(weight.detach(), None if bias is None else bias.detach())
    except Exception as error:  # of a user's class
        if isinstance(error, BassError) or is_out_of_memory(error):
            raise
        shape = " x ".join(map(str, weight.shape))
        raise StrategyError(
            f"`{type(quantization).__name__}` failed on a matrix of {shape}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise StrategyError(
            f"`{type(quantization).__name__}` made {made!r} of a linear layer: it must return a "
            "`torch.nn.Module`."
        )
    return made.requires_grad_(False).eval()


def quantize(decoder: CausalDecoder, quantization: Quantization) -> CausalDecoder:
    """Quantize the linear layers of a decoder's blocks, in place."""
    for name in quantizable(decoder):
        quantize_layer(decoder, name, quantization)
    return decoder


@contextmanager
def unfilled() -> Iterator[None]:
    """Linear layers made meanwhile, by this thread, take no memory: their parameters are on the
    meta device.
    """
    thread = threading.get_ident()

    def emptied(module: nn.Module, name: str, parameter: Tensor) -> Tensor | None:
        ours = type(module) is Linear and threading.get_ident() == thread
        return nn.Parameter(parameter.to("meta"), requires_grad=False) if ours else None

    # whose annotation forgets that a hook may return another parameter
    register: Any = register_module_parameter_registration_hook
    hook = register(emptied)
    try:
        yield
    finally:
        hook.remove()
