"""Sinks: writers of views and incidents to other programs."""
