"""Checks of the tensors that a strategy returns: dense, and on the device of the run."""

from dataclasses import fields

import torch
from torch import Tensor

from bass.errors import StrategyError

FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
INTEGERS = (
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)


def check_dense(value: Tensor, device: torch.device, what: str) -> None:
    """Raise `StrategyError` for a tensor that is sparse, nested, quantized, or on another device
    (such as `meta`). `what` is the subject of the sentence.
    """
    if value.is_nested:
        kind = "is a nested tensor"
    elif value.is_quantized:
        kind = "is a quantized tensor"
    elif value.layout != torch.strided:
        kind = "is a sparse tensor"
    elif value.device != device:
        kind = f"is on `{value.device}`"
    else:
        return
    raise StrategyError(f"{what} {kind}: give a dense tensor on `{device}`.")


def check_complete(record: object, what: str) -> None:
    """Raise `StrategyError` for a record without one of its fields."""
    kind = type(record)
    missing = [f.name for f in fields(kind) if not hasattr(record, f.name)]  # pyright: ignore[reportArgumentType]
    if missing:
        raise StrategyError(
            f"{what} gave a `{kind.__name__}` without `{missing[0]}`: make it by "
            f"`{kind.__name__}({', '.join(kind.__annotations__)})`."
        )


def check_probs(warp: object, probs: object, logits: Tensor) -> Tensor:
    """The result of a warp, if its shape and type fit the logits.

    Raises `StrategyError` otherwise. Values are not checked here.
    """
    name, kind = type(warp).__name__, type(probs).__name__
    if isinstance(probs, Tensor):
        check_dense(probs, logits.device, f"The answer of `{name}`")
        if probs.shape == logits.shape and probs.dtype in FLOATS:
            return probs
        kind = f"{dtype_name(probs)} of shape {list(probs.shape)}"
    raise StrategyError(
        f"`{name}` answered with {kind}: give probabilities in float32, a tensor of shape "
        f"{list(logits.shape)}."
    )


def dtype_name(value: Tensor) -> str:
    """The name without `torch.`, such as `int64`."""
    return str(value.dtype).removeprefix("torch.")
