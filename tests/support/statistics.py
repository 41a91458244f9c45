"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.statistics import FALSE_FAILURE, MISS, SEEN_BIAS, LawTest, assert_law, count

__all__ = ["FALSE_FAILURE", "MISS", "SEEN_BIAS", "LawTest", "assert_law", "count"]
