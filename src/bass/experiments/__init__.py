"""Runs that measure: ablations, benchmarks, evaluations, traces."""
