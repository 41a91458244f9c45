"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.worlds import POISON, CountingWorld, LlamaWorld, Pairing, TableScorer, TableWorld, World, hash_sums, poisoned

__all__ = ["POISON", "CountingWorld", "LlamaWorld", "Pairing", "TableScorer", "TableWorld", "World", "hash_sums", "poisoned"]
