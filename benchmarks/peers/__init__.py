"""Other engines on the prompts and settings of our benchmarks: a module for each."""
