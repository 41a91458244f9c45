"""Defects of the kernels for CPUs, and of their choice."""

from support.mutants.killers import BY_CPU, BY_CPU_PROGRAM, BY_CPU_STEP
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
        "a CPU's noise swaps the halves of the key",
        "cpu.noise._uniforms",
        "low, high = key & MASK, key >> SHIFT",
        "high, low = key & MASK, key >> SHIFT",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's threads begin a recorded kernel before the one before has ended",
        "cpu.runtime._region",
        "_call(kernel[0], kernel[1])\nbarrier()",
        "_call(kernel[0], kernel[1])",
        (BY_CPU_PROGRAM,),
    ),
    Mutant(
        "buffers of a CPU's program overlap at the launch that ends one and begins the other",
        "cpu.program._offsets",
        "other.life[0] <= last",
        "other.life[0] < last",
        (BY_CPU_PROGRAM,),
    ),
    Mutant(
        "a CPU's top-p drops the token that reaches the sum",
        "cpu.sampling._floor",
        "count == 0 or total >= mass",
        "count == 0 or total + heap[0] >= mass",
        (BY_CPU_STEP,),
    ),
    Mutant(
        "a CPU's verdict draws from the target after a rejection",
        "cpu.rejection_sampling._verdict",
        "used = some",
        "used = False",
        (BY_CPU_STEP,),
    ),
    Mutant(
        "a CPU's step goes on after an end token",
        "cpu.batch_state._commit",
        "first_end >= own",
        "True",
        (BY_CPU_STEP,),
    ),
    Mutant(
        "a recorded pass reads the old memory of a weight",
        "RecordedPasses.__call__",
        "program.stale",
        "False",
        (BY_CPU_PROGRAM,),
    ),
)
