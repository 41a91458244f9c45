"""Batched speculative decoding of language models."""
