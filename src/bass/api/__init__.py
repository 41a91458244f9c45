"""What users touch: options, loading, generation, results."""
