"""Kernels in Triton: attention (`attention.py`), products of a few rows (`dense.py`), and what stands between them (`stream.py`).

Their twins in plain torch are in `reference.py`.

Nothing here imports the rest of `bass`, and importing this package, or `reference`, needs no Triton.
"""

import importlib.util
import os

import torch


def obstacle(device: torch.device) -> tuple[str, str] | None:
    """Why the Triton kernels cannot run on the device, and what to do about it; None where they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed", 'install it with `pip install "bass[triton]"`'
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "Triton compiles for GPUs", "take a CUDA device, or set TRITON_INTERPRET=1, which interprets its kernels, slowly"
    if device.type not in ("cpu", "cuda"):
        return "the kernels know CUDA devices, and a CPU with TRITON_INTERPRET=1", "take one of these"
    return None
