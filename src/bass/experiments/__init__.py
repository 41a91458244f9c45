"""Ablations: plans from configs, and the execution of their cells."""
