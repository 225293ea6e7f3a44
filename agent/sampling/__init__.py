"""Sampling: what a source is, and how each is read at its period, within deadline and budget."""
