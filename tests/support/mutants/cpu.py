"""Defects of the kernels for CPUs."""

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
        "a CPU's attention reads a packed row from its second token on",
        "cpu.attention._store_and_attend",
        "b * window if window > 0 else offsets[b]",
        "b * window if window > 0 else offsets[b] + 1",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's noise swaps the halves of the key",
        "cpu.step._uniforms",
        "low, high = key & MASK, key >> SHIFT",
        "high, low = key & MASK, key >> SHIFT",
        (BY_CPU,),
    ),
    Mutant(
        "a CPU's threads begin a recorded kernel before the one before has ended",
        "cpu.runtime._region",
        "_call(kernel, packed)\nbarrier()",
        "_call(kernel, packed)",
        (BY_CPU_PROGRAM,),
    ),
    Mutant(
        "tensors of a CPU's program share memory that is in use",
        "cpu.runtime.ProgramMemory.take",
        "weakref.finalize(owner, self._free.append, block)",
        "self._free.append(block)",
        (BY_CPU_PROGRAM,),
    ),
    Mutant(
        "a CPU's top-p drops the token that reaches the sum",
        "cpu.step._floor",
        "number >= count",
        "number > count",
        (BY_CPU_STEP,),
    ),
    Mutant(
        "a CPU's step goes on after an end token",
        "cpu.step.finish",
        "ended |= token == ends[row * count + end]",
        "ended |= False",
        (BY_CPU_STEP,),
    ),
)
