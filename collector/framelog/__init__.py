"""The frame log: segments on disk, received sequences, and what a restart cannot read."""
