"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.dense import dense_attention, dense_logits

__all__ = ["dense_attention", "dense_logits"]
