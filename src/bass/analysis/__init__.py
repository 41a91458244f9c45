"""Figures of recorded runs: metrics, intervals, comparisons, and how noisy the machine was."""
