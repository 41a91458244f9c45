"""Defects of the kernels for CPUs, and of their choice."""

from support.mutants.killers import BY_CPU, CPU_WAYS
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a CPU's product skips columns after the last full tile",
        "cpu.gemm._columns",
        "at += width if full else 1",
        "at += width",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's threads miss the columns that fill no block",
        "cpu.gemm._share",
        "(count + BLOCK - 1) // BLOCK",
        "count // BLOCK",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's product reads a bfloat16 matrix at the offsets of float32",
        "cpu.gemm._columns",
        "itemsize = 2 if half else 4",
        "itemsize = 4",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's gated product adds the gates' bias to both halves",
        "cpu.gemm._gated",
        "up + add[inner + i]",
        "up + add[i]",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's attention window is one position too long",
        "cpu.attention._store_and_attend",
        "own + 1 - seen",
        "own - seen",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's attention does not store the first key",
        "cpu.attention._store_and_attend",
        "own >= 0",
        "own > 0",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's norm skips the last row of a thread",
        "cpu.norms._add_norm",
        "rows * (me + 1) // threads",
        "(rows - 1) * (me + 1) // threads",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's noise swaps the halves of the key",
        "cpu.noise._uniforms",
        "low, high = key & MASK, key >> SHIFT",
        "high, low = key & MASK, key >> SHIFT",
        (BY_CPU,),
    ),
    Mutant(
        "the slowest way of a CPU's product is chosen",
        "cpu_products._fastest",
        "min(least, key=lambda name: least[name])",
        "max(least, key=lambda name: least[name])",
        (CPU_WAYS,),
    ),
    Mutant(
        "times of a busy CPU are stored",
        "cpu_products._choose",
        "busy() or time.perf_counter() > until",
        "time.perf_counter() > until",
        (CPU_WAYS,),
    ),
)
