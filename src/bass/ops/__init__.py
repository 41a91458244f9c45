"""Operations: formula, torch version, and choice of kernel.

One file per family of operations. Each function documents its formula and shapes, has a torch
version, and uses a kernel if one supports the tensors. Nothing else imports `bass.kernels`.
"""
