"""Sinks: exporters that write views to other systems."""
