"""GPU kernels, called only by `bass.ops`. Nothing here imports the rest of `bass`.

    triton/    attention, products of a few rows, norms, rotary embedding, sampling, verification,
               the state of the batch: any CUDA device, and a CPU with Triton's interpreter
    hopper/    the products, norms and attention of up to 16 rows, in Gluon
    cpu/       the step of a small model on a CPU, by numba
    support    which devices run them, and why others do not
    values     what operations give them: shapes, norms, flags

The plain torch version of each, with the formula that both compute, is in `bass.ops`.
"""
