"""State of the collector: application of accepted envelopes, checkpoints, and restart."""
