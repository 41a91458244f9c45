"""The inputs of results: versions, the machine, source code, and checkpoints."""
