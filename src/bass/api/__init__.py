"""The user-facing API: options, loading, generation, results."""
