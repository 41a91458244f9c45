"""Scores on tasks: problems, samples of them, and generated code, exact answers and summaries."""
