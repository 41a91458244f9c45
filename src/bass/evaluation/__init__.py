"""Scores on tasks: problems, generated code run apart, pass rates within time budgets, summaries
and exact answers.
"""
