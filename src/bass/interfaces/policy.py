"""How many tokens to draft. It needs NumPy alone: no torch."""

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from bass.host_records import Feedback

State = TypeVar("State")


class DraftLengthPolicy(ABC, Generic[State]):
    """How many tokens to draft for each row. Host only and pure: NumPy, no torch.

    `constant_length`: lengths are always the same, so that a step may be launched before the report
    of the one before.
    """

    max_length: int
    constant_length: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "steady" in vars(cls):
            warnings.warn(
                f"`{cls.__name__}.steady` is now `constant_length`: rename it.",
                DeprecationWarning,
                stacklevel=2,
            )
            cls.constant_length = vars(cls)["steady"]

    @abstractmethod
    def init(self, batch_size: int) -> State: ...

    @abstractmethod
    def lengths(self, state: State) -> np.ndarray:
        """int32 [B], each in 0..max_length; 0 is plain decoding."""
        ...

    @abstractmethod
    def update(self, state: State, feedback: Feedback) -> State: ...

    def reset(self, state: State, rows: np.ndarray) -> State:
        """The rows (indices) that were given a new prompt start afresh; a batch-wide policy keeps
        its state.
        """
        return state
