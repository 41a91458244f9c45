"""Checkpoints on disk and on the hub: files, limits, and loading into a decoder."""
