"""The inner loop of a product: a tile of some rows of x and some rows of W, in registers.

    y[r, t] = Σ_k x[r, k] W[t, k]        lanes: k = 0, 8, 16 .. | 1, 9, 17 .. | .. | 7, 15, 23 ..

Each number sums its 8 lanes in one order, whatever the tile: it depends neither on the other rows
of x, nor on the number of threads, nor on the processor's registers. With registers of 16 floats
(AVX-512) one holds the lanes of two rows of W:

    W[t] | W[t + 1]   times   x[r] | x[r]   is added to   y[r, t] | y[r, t + 1]
"""

import itertools
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
FEATURES = binding.get_host_cpu_features()
WIDE = FEATURES.get("avx512dq", False)
# rows of W in a tile, by its rows of x (from 1), in at most 16 registers of 8 floats or 32 of 16;
# one or two rows of x wait for memory, which is fastest in order
WIDTHS = (1, 1, 6, 12, 6, 6) if WIDE else (4, 4, 3, 3, 2, 2)
PAIRED = 3 if WIDE else 7  # rows of x from which a register holds two rows of W
MOST = len(WIDTHS)
_FLOAT, _HALF, _INT, _WORD = ir.FloatType(), ir.IntType(16), ir.IntType(64), ir.IntType(32)
_VECTOR, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_WORD, LANES)


def _constant(value: int) -> Any:
    return ir.Constant(_INT, value)


def _loaded(builder: Any, rows: Any, k: Any, is_half: bool) -> Any:
    """8 numbers of a row from column k on, widened to float32."""
    kind = ir.VectorType(_HALF, LANES) if is_half else _VECTOR
    at = builder.bitcast(builder.gep(rows, [k]), kind.as_pointer())
    value = builder.load(at, align=2 if is_half else 4)
    if is_half:  # bfloat16 is the upper half of a float32
        wide = builder.zext(value, _WORDS)
        value = builder.bitcast(builder.shl(wide, ir.Constant(_WORDS, [16] * LANES)), _VECTOR)
    return value


def _chosen(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """The lanes with these numbers of two vectors, one after the other."""
    mask = ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes)
    return builder.shuffle_vector(a, b, mask)


def _totals(builder: Any, vector: Any, pack: int) -> list[Any]:
    """The sums of the lanes, of each of `pack` rows of W in the vector."""
    count = LANES
    while count > 1:
        count //= 2
        low, high = (
            [2 * count * one + i for one in range(pack) for i in range(first, first + count)]
            for first in (0, count)
        )
        vector = builder.fadd(
            _chosen(builder, vector, vector, low), _chosen(builder, vector, vector, high)
        )
    return [builder.extract_element(vector, ir.Constant(_WORD, one)) for one in range(pack)]


def _emit(builder: Any, addresses: tuple[Any, ...], sizes: tuple[Any, Any], shape: Any) -> None:
    """One tile: `addresses` of W, x and y, `sizes` k and the row length of y; `shape`: rows of x,
    rows of W, and whether W is bfloat16.
    """
    (w, x, y), (size, stride), (rows, width, is_half) = addresses, sizes, shape
    pack = 2 if rows >= PAIRED and width > 1 else 1  # rows of W in a register
    vector = ir.VectorType(_FLOAT, LANES * pack)

    def row(base: Any, index: int, kind: Any, itemsize: int) -> Any:
        offset = builder.mul(size, _constant(index * itemsize))
        return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

    kind, itemsize = (_HALF, 2) if is_half else (_FLOAT, 4)
    weights = [row(w, t, kind, itemsize) for t in range(width)]
    inputs = [row(x, r, _FLOAT, 4) for r in range(rows)]
    # fused where the CPU can
    fma = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(vector, [vector] * 3),
        f"llvm.fmuladd.v{LANES * pack}f32",
    )
    before, head, body, done = builder.block, *(builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(_INT)
    k.add_incoming(_constant(0), before)
    sums = [[builder.phi(vector) for _ in range(0, width, pack)] for _ in range(rows)]
    for one in itertools.chain(*sums):
        one.add_incoming(ir.Constant(vector, [0.0] * LANES * pack), before)
    builder.cbranch(builder.icmp_signed("<", k, size), body, done)
    builder.position_at_end(body)
    read = [_loaded(builder, one, k, is_half) for one in weights]
    lanes = list(range(LANES))
    if pack == 2:
        both = lanes + [LANES + i for i in lanes]
        pairs = zip(read[::2], read[1::2], strict=True)
        read = [_chosen(builder, first, second, both) for first, second in pairs]
    for r in range(rows):
        own = _loaded(builder, inputs[r], k, False)
        own = own if pack == 1 else _chosen(builder, own, own, lanes * 2)
        for weight, one in zip(read, sums[r], strict=True):
            one.add_incoming(builder.call(fma, [weight, own, one]), body)
    k.add_incoming(builder.add(k, _constant(LANES)), body)
    builder.branch(head)
    builder.position_at_end(done)
    for r in range(rows):
        totals = [total for one in sums[r] for total in _totals(builder, one, pack)]
        for t, total in enumerate(totals):
            place = builder.add(builder.mul(stride, _constant(r)), _constant(t))
            at = builder.add(y, builder.mul(place, _constant(4)))
            builder.store(total, builder.inttoptr(at, _FLOAT.as_pointer()))


@intrinsic
def tile(typing: Any, kind: Any, w: Any, x: Any, y: Any, size: Any, stride: Any) -> Any:
    """Compute the tile of this `kind`, an integer: see `kind_of`. `size` is a multiple of 8."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end = builder.append_basic_block()
        branch = builder.switch(arguments[0], end)
        for is_half in (False, True):
            for rows in range(1, MOST + 1):
                for full, width in enumerate((1, WIDTHS[rows - 1])):
                    block = builder.append_basic_block()
                    branch.add_case(_constant(kind_of(rows, full, is_half)), block)
                    builder.position_at_end(block)
                    shape = rows, width, is_half
                    _emit(builder, tuple(arguments[1:4]), tuple(arguments[4:6]), shape)
                    builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), code


def kind_of(rows: int, full: int, is_half: int) -> int:
    """The number of a kind of tile; full: as wide as `WIDTHS` says, else one row of W."""
    return (is_half * (MOST + 1) + rows) * 2 + full
