"""What runs recorded, as frames: metrics, statistics, tables, the report."""
