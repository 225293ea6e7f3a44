"""The frame log: segments on disk, received sequences, and quarantined records."""
