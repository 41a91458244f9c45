"""Evaluation on tasks: problems, their samples, and scores of code, answers and summaries."""
