"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.policies import ByRow, Cycle, OwnPast

__all__ = ["ByRow", "Cycle", "OwnPast"]
