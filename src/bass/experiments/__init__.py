"""Experiments: run folders, metrics, statistics, ablations and their reports."""
