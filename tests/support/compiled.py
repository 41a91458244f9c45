"""Compiles every kernel for a GPU that need not be there: `python -m support.compiled [80|89|90]`
prints what each takes.

It fails where one cannot be compiled, or takes more shared memory than a program has. The
interpreter accepts what the compiler refuses, such as a variable that changes its shape. Of torch's
tensors only types and strides are looked at; nothing is run.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from bass.kernels.hopper import attention as hopper_attention
from bass.kernels.hopper import gemm, gemm_residual
from bass.kernels.support import is_known_gluon
from bass.kernels.triton import (
    attention,
    batch_state,
    experts,
    group_quantized_gemm,
    kv_store,
    launch,
    quantize,
    rejection_sampling,
    residual_norm,
    sampling,
    small_m_gemm,
    validity,
)
from bass.kernels.values import Norm

CAPABILITY = int(sys.argv[1]) if len(sys.argv) > 1 else 90
HOPPER = CAPABILITY == 90 and is_known_gluon()  # whether its kernels run
# of an A100, an L40, an H100: bytes of shared memory of a program
ROOM = {80: 163, 89: 99, 90: 227}[CAPABILITY] * 1024
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
BF16, F32, I64, E4M3 = torch.bfloat16, torch.float32, torch.int64, torch.float8_e4m3fn


class Elsewhere:
    """A driver for a GPU that compiles and never launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def set_current_device(self, _: int) -> None:
        return None


def compile_only(self: Any, grid: Any) -> Any:
    def compile_it(*args: Any, **kwargs: Any) -> None:
        kernel = self.warmup(*args, grid=grid, **kwargs)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            said = subprocess.run(
                [TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()  # type: ignore[union-attr]
        line = (
            f"{self.fn.__name__:>14} {kwargs.get('num_warps', 4)} warps: {registers:>3} "
            f"registers, stack {stack:>4}, "
        )
        print(line + f"shared {kernel.metadata.shared:>6}", flush=True)
        assert kernel.metadata.shared <= ROOM, (
            f"{self.fn.__name__} takes {kernel.metadata.shared} bytes, and there are {ROOM}"
        )

    return compile_it


def numbers(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def products() -> None:
    """Products of few rows, in each pair of types, and gates."""
    for x, w, scaled in (
        (BF16, BF16, (False, False)),
        (torch.int8, torch.int8, (True, True)),
        (E4M3, E4M3, (True, True)),
        (BF16, torch.int8, (False, True)),
    ):
        if E4M3 in (x, w) and CAPABILITY < 89:  # which has no such numbers
            continue
        x_scale, w_scale = (
            numbers(n, dtype=F32) if s else None for n, s in zip((8, 4096), scaled, strict=True)
        )
        small_m_gemm.linear(
            numbers(8, 4096, dtype=x),
            numbers(4096, 4096, dtype=w),
            numbers(4096),
            x_scale,
            w_scale,
            BF16,
        )
        small_m_gemm.gated(
            numbers(8, 4096, dtype=x), numbers(4096, 4096, dtype=w), "silu", x_scale, w_scale, BF16
        )
        if x == w and HOPPER:
            hopper_products(x, x_scale, w_scale)
    small_m_gemm.linear(numbers(3, 70, dtype=F32), numbers(50, 70, dtype=F32))
    small_m_gemm.linear(
        numbers(64, 4096),
        numbers(4096, 4096, dtype=torch.int8),
        None,
        None,
        numbers(4096, dtype=F32),
        BF16,
    )
    for act in ("gelu", "gelu_tanh"):
        small_m_gemm.gated(numbers(3, 70), numbers(50, 70), act)
        small_m_gemm.gate(numbers(2, 3, 2200, dtype=F32), act, BF16)


def group_quantized_products() -> None:
    """Products with the matrices of quantized checkpoints, each kind of codes."""
    for kind, w, scale, zero, group in (
        ("int4", torch.uint8, BF16, torch.uint8, 128),
        ("int4", torch.uint8, torch.float16, None, 32),
        ("e2m1", torch.uint8, torch.uint8, None, 32),
        ("int8", torch.int8, BF16, torch.int8, 128),
        ("e4m3", E4M3, F32, None, 128),
    ):
        stored = numbers(4096, 4096 if kind in ("int8", "e4m3") else 2048, dtype=w)
        groups = (4096 // group, 4096)
        zeros = None if zero is None else numbers(*groups, dtype=zero)
        for rows in (8, 64):
            group_quantized_gemm.linear(
                numbers(rows, 4096), stored, numbers(*groups, dtype=scale), zeros, group, kind
            )


def hopper_products(kind: torch.dtype, x_scale: Any, w_scale: Any) -> None:
    """Products that prefetch, of one type."""
    gemm.linear(
        numbers(8, 4096, dtype=kind),
        numbers(12288, 4096, dtype=kind),
        numbers(12288),
        x_scale,
        w_scale,
        BF16,
    )
    gemm.linear(
        numbers(32, 4096, dtype=kind), numbers(4096, 4096, dtype=kind), None, x_scale, w_scale, BF16
    )
    gemm.gated(
        numbers(32, 4096, dtype=kind),
        numbers(22016, 4096, dtype=kind),
        "gelu",
        x_scale,
        w_scale,
        BF16,
    )


def norms_and_stores() -> None:
    """Norms, quantized rows, and what is rotated and stored."""
    for kind in (None, torch.int8, E4M3) if CAPABILITY >= 89 else (None, torch.int8):
        for norm in (
            Norm(numbers(4096), 1e-5),
            Norm(numbers(4096), 1e-5, "layer", numbers(4096)),
            Norm(None, 1e-5, "layer"),
        ):
            parts = numbers(2, 8, 4096, dtype=F32)
            residual_norm.add_norm(numbers(8, 4096), parts, norm, kind, others=parts)
        offset = Norm(numbers(4096), 1e-5, "offset_rms")
        residual_norm.add_norm(numbers(8, 4096), parts, offset, kind, through=offset)
        residual_norm.add_norm(numbers(8, 4096), parts, others=parts)
        residual_norm.add_norm(numbers(8, 4096), parts, through=offset)
        if kind is not None:
            quantize.quantize_rows(numbers(8, 4096), kind)
    angles, window, positions, pool = (
        numbers(64, 128),
        numbers(2, 2, 8, 48, 128, dtype=F32),
        numbers(2, 8, dtype=I64),
        numbers(64, 8, 128),
    )
    both, norm = (angles, angles), Norm(numbers(40 * 128), 1e-5, "offset_rms")
    padded = numbers(2, 64, 8, 128)
    kv_store.rotate_and_store(window, both, None, positions, padded, padded)
    kv_store.rotate_and_store(window, None, norm, positions, padded, padded)
    for place, page in ((numbers(2, dtype=I64), None), (numbers(2, 5, dtype=I64), 16)):
        kv_store.rotate_and_store(window, both, norm, positions, pool, pool, place, page)


def attentions() -> None:
    """Attention in each layout."""
    for heads, kv_heads, dim, queries, splits in (
        (32, 32, 128, 8, 5),
        (32, 8, 128, 8, 1),
        (4, 1, 20, 33, 5),
        (32, 8, 128, 256, 1),
        (16, 8, 256, 256, 1),
    ):
        q, positions = numbers(2, queries, heads, dim), numbers(2, queries, dtype=I64)
        places = (
            (positions, 512, 0.3, 20, 30.0, numbers(heads), splits)
            if dim == 20
            else (positions, 512, 0.3, None, None, None, splits)
        )
        for shape, place in (
            ((2, 600), None),
            ((900,), numbers(2, dtype=I64)),
            ((90, 16), numbers(2, 32, dtype=I64)),
        ):
            k, v = (numbers(*shape, kv_heads, dim) for _ in range(2))
            attention.attend(q, k, v, place, *places)


def five_launches() -> None:
    """The kernels of a block in five launches."""
    for n, rows_of_x, kind in ((2048, 1, "rms"), (4096, 16, "offset_rms"), (1024, 3, "layer")):
        term = gemm_residual.Term(numbers(rows_of_x, n), numbers(n, n), numbers(n))
        norm = Norm(numbers(n), 1e-5, kind, numbers(n) if kind == "layer" else None)
        terms = [term] * (2 if kind == "layer" else 1)
        left = gemm_residual.added(terms, numbers(rows_of_x, n), norm)
        gemm.linear(left.weighted, numbers(4096, n), None, left.norm, None, BF16)
        gemm.linear(left.weighted, numbers(4096, n), numbers(4096), left.norm, None, BF16, "relu")
        gemm.gated(left.weighted, numbers(4096, n), "silu", left.norm, None, BF16)
    for parts, queries, groups, dim, kind in (
        (1, 8, 1, 128, BF16),
        (1, 1, 1, 64, BF16),
        (2, 5, 4, 128, F32),
        (1, 17, 1, 128, BF16),
        (1, 4, 7, 128, BF16),
        (1, 5, 2, 64, BF16),
    ):
        window, slots = (
            numbers(parts, 2, queries, 8 * (groups + 2), dim, dtype=kind),
            [numbers(900, 8, dim) for _ in range(2)],
        )
        angles, places = (
            [numbers(64, dim, dtype=F32)] * 2,
            (numbers(2, dtype=I64), numbers(2, queries, dtype=I64)),
        )
        normed = Norm(numbers(8 * (groups + 1) * dim), 1e-5, "offset_rms" if groups == 7 else "rms")
        hopper_attention.ragged(
            window,
            normed if groups in (4, 7) else None,
            None if groups == 2 else tuple(angles),
            *slots,
            *places,
            0.3,
            *((20, 30.0) if groups == 4 else (None, None)),
        )


def mixtures() -> None:
    """Experts of few rows, and of many, in bfloat16 and in MXFP4."""
    for rows, count, chosen, size, inner, packed in (
        (5, 128, 8, 2048, 768, False),
        (40, 8, 2, 2048, 14336, False),
        (2048, 128, 8, 2048, 768, False),
        (1, 32, 4, 2880, 2880, True),
        (8, 128, 4, 2880, 2880, True),
        (2048, 32, 4, 2880, 2880, True),
    ):
        logits = numbers(2 if rows < 64 else 1, rows, count, dtype=F32)
        squares = numbers(64, rows, dtype=F32) if rows == 5 else None
        choice = experts.route(logits, chosen, True, BF16, squares, 2048)
        real, experts.align = (
            experts.align,
            lambda chosen, count, size: experts.Blocks(
                numbers(9, size, dtype=torch.int32), numbers(9, dtype=torch.int32)
            ),
        )
        shapes = (count * 2 * inner, size), (count * size, inner)
        kind = torch.uint8 if packed else BF16
        weights = [numbers(n, k // (1 + packed), dtype=kind) for n, k in shapes]
        biases = [numbers(n) if packed else None for n, _ in shapes]
        scales = [numbers(k // 32, n, dtype=kind) if packed else None for n, k in shapes]
        experts.experts(numbers(rows, size), choice, *weights, count, "silu", *biases, *scales)
        experts.align = real


def samples() -> None:
    """Noise, warps, draws and verdicts."""
    batch_state.uniforms(numbers(4, dtype=I64), numbers(4, dtype=I64), 8, 0)
    row = numbers(2, dtype=I64)
    for kind in (BF16, torch.float16, F32):
        sampling.warp(
            numbers(2, 3, 51200, dtype=kind), numbers(2, 8, dtype=torch.float64),
            numbers(2, 90, dtype=I64), row, row, numbers(2, 8, dtype=I64), numbers(2, 2, dtype=I64),
        )  # fmt: skip
    sampling.token_logprobs(numbers(2, 3, 51200), numbers(2, 3, dtype=I64))
    probs, uniforms = numbers(2, 4, 51200, dtype=F32), numbers(2, 4, dtype=torch.float64)
    rejection_sampling.draw(probs[:, 0], uniforms[:, 0])
    for draft in (probs[:, :3], None):
        rejection_sampling.verdict(
            numbers(2, 3, dtype=I64), draft, numbers(2, dtype=I64), probs, uniforms, uniforms
        )
    draft = numbers(2, 3, dtype=I64)
    rejection_sampling.emit(draft, row, probs[:, 0], uniforms)


def rows() -> None:
    """The state of a batch, and its report."""
    tokens, row, flags, draft = (
        numbers(2, 90, dtype=I64),
        numbers(2, dtype=I64),
        numbers(2, dtype=torch.bool),
        numbers(2, 3, dtype=I64),
    )
    residual_norm.embedded(numbers(90, 2048), tokens)
    batch_state.last(tokens, row, flags, 2)
    batch_state.draft_positions(row, row, 3)
    for chances in (numbers(2, 3, 51200, dtype=F32), None):
        validity.valid_part(row, row, draft, chances, 51200)
    validity.with_target_flags(row, numbers(2, 4, 51200, dtype=F32), row)
    batch_state.window(tokens, row, flags, draft, row)
    batch_state.leading(numbers(2, 3, dtype=torch.bool), row)
    ends = numbers(2, 8, dtype=I64)
    batch_state.commit(tokens, row, row, flags, row, ends, numbers(2, 4, dtype=I64), row, 51200)
    batch_state.clipped(row, row, row, flags)
    for chances in (numbers(2, 3, 90, dtype=F32), None):
        batch_state.pack_report(
            row,
            flags,
            row,
            row,
            row,
            row,
            numbers(2, 4, dtype=I64),
            numbers(2, 4, dtype=F32),
            draft,
            chances,
        )


def everything() -> None:
    """Every kernel once, and again where what differs decides what is compiled at all."""
    products()
    group_quantized_products()
    norms_and_stores()
    attentions()
    mixtures()
    if HOPPER:
        five_launches()
    samples()
    rows()


if __name__ == "__main__":
    driver.set_active(Elsewhere())
    JITFunction.__getitem__ = compile_only  # type: ignore[method-assign]
    for module in (
        attention,
        experts,
        group_quantized_gemm,
        kv_store,
        small_m_gemm,
        quantize,
        batch_state,
        sampling,
        residual_norm,
        rejection_sampling,
        validity,
    ):
        module.dependent = lambda _: (
            {"PDL": True, "launch_pdl": True} if CAPABILITY >= 90 else {"PDL": False}
        )  # type: ignore[attr-defined]
        if hasattr(module, "shared_memory"):
            module.shared_memory = lambda _: ROOM
    for module in (gemm, gemm_residual, hopper_attention):
        module.multiprocessors = lambda _: 132  # type: ignore[attr-defined]
    assert not launch.INTERPRETED
    sys.exit(everything())
