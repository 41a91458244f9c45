"""Numbers of quantized matrices that are none: codes of e4m3, and scales."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Num, UInt8
from torch import Tensor

from bass.errors import CheckpointError

NAN, SIGN = 0x7F, 0x80  # of e4m3
NO_NUMBERS = "codes of e4m3 that are not a number (NaN): the file is damaged, download it again."
SCANNED = 1 << 18  # bytes that are compared at a time: they stay in a cache
# the bits of the exponent, which are all set in NaN and infinity (in e8m0: NaN alone)
EXPONENTS: dict[str, tuple[str, int]] = {
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E8M0": ("u1", 0xFF),
    "U8": ("u1", 0xFF),  # of MXFP4
}


def check_codes(codes: Num[Tensor, "out in"]) -> None:
    """Raise `CheckpointError` for codes of e4m3 in host memory that are no numbers: products widen
    them by their bits, as if they were 480. `layers.check_numbers` looks at those on a GPU.
    """
    if codes.is_cpu and any(
        part.max() == NAN | SIGN or part.view(np.int8).max() == NAN
        for part in _parts(codes.view(torch.uint8).flatten())
    ):
        raise CheckpointError(f"its `weight` has {NO_NUMBERS}")


def check_scales(role: str, kind: str, raw: UInt8[Tensor, " bytes"]) -> None:
    """Raise `CheckpointError` for scales, as the file has them, that are not finite."""
    dtype, exponent = EXPONENTS[kind]
    if any((part.view(dtype) & exponent).max() == exponent for part in _parts(raw)):
        raise CheckpointError(
            f"its `{role}` has scales that are not finite (NaN or infinity): the file is damaged, "
            "download it again."
        )


def _parts(raw: UInt8[Tensor, " bytes"]) -> Iterator[np.ndarray]:
    """By numpy: torch starts threads for each part."""
    return (raw[i : i + SCANNED].numpy() for i in range(0, len(raw), SCANNED))
