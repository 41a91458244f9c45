"""Checks of the tensors that a strategy returns. Values are not checked here."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bass.errors import StrategyError

KINDS = {
    "probabilities": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    "integers": (
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    ),
    "truth values": (torch.bool,),
}


def check_tensor(
    value: object, what: str, kind: str, shape: Sequence[int], device: torch.device
) -> Tensor:
    """The value, if it is a tensor of one of `KINDS`, of this shape and on this device.

    Raises `StrategyError` otherwise. what: the subject of the sentence.
    """
    if not isinstance(value, Tensor):
        found = type(value).__name__
    elif value.dtype in KINDS[kind] and value.shape == shape and value.device == device:
        return value
    else:
        found = f"{value.dtype} of shape {list(value.shape)} on `{value.device}`"
    raise StrategyError(
        f"{what} is {found}: give {kind}, a tensor of shape {list(shape)} on `{device}`."
    )


def check_probs(warp: object, probs: object, logits: Tensor) -> Tensor:
    """The result of a warp, if its shape and type fit the logits."""
    what = f"The answer of `{type(warp).__name__}`"
    return check_tensor(probs, what, "probabilities", logits.shape, logits.device)
