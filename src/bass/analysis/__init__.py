"""Figures of recorded runs: metrics, intervals, comparisons, and the noise of the machine."""
