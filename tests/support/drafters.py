"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.drafters import Scripted, Unsure

__all__ = ["Scripted", "Unsure"]
