"""What runs recorded, as frames: metrics, statistics, tables, the report."""

from bass.analysis.metrics import METRICS, Measurement, metric

__all__ = ["METRICS", "Measurement", "metric"]
