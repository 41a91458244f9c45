"""Trims, which decide how much of a draft is verified, by their names for `trim=`."""

from bass.trims.trims import AdaEdl, Budget, Survival, Tetris, Threshold

TRIMS = {"adaedl": AdaEdl, "survival": Survival, "tetris": Tetris, "threshold": Threshold}
__all__ = ["TRIMS", "AdaEdl", "Budget", "Survival", "Tetris", "Threshold"]
