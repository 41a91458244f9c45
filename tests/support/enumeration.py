"""What `bass.testing` has, under the name that the laws know."""

from bass.testing.enumeration import CUTS, Problem, Rows, boxes, judge, mean_accepted, output_laws

__all__ = ["CUTS", "Problem", "Rows", "boxes", "judge", "mean_accepted", "output_laws"]
