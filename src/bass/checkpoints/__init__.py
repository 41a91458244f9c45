"""Checkpoints on disk and on the hub: what is read, within which limits, and how it becomes a
decoder of `bass.models`.
"""
