"""Sampling: the source interface, and reading each source at its period, within deadline and budget."""
