"""Checkpoints on disk and on the hub: files, limits, and the way to a decoder of `bass.models`."""
