"""The engine: scorer, speculative step, autoregressive loop, and the host loop over requests."""
