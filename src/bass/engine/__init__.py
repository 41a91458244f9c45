"""The engine: scorer, speculative step, autoregressive loop, and the host's loop over requests."""
