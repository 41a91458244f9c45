"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.watch import Witness

__all__ = ["Witness"]
