"""Sinks: one file per place frames go to."""
