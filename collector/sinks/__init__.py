"""Sinks: where views are written to."""
