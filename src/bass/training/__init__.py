"""Training of drafts for a target: `bass train-draft`."""
