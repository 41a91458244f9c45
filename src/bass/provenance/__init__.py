"""What results are made with: versions, the machine, source code, and checkpoints."""
