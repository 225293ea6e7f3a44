"""State of the collector: application of accepted envelopes, snapshots, and restart."""
