"""State of the collector: how an accepted envelope changes it, checkpoints, and restart."""
