"""Ablations: plans from configs, and what runs their cells."""
