"""Decoders, one short file per family, and their weights."""
