"""Linear layers in fewer bytes."""
