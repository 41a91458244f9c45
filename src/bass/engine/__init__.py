"""Scorer, speculative step, plain loop, and the host's loop over a batch of requests."""
