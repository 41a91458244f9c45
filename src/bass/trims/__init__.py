"""Trims, which decide how much of a draft is verified, by their names for `trim=`."""

from bass.trims.trims import Survival, Tetris, Threshold

TRIMS = {"survival": Survival, "tetris": Tetris, "threshold": Threshold}
__all__ = ["TRIMS", "Survival", "Tetris", "Threshold"]
