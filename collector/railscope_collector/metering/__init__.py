"""Metering: exact GPU time by holder and by state."""
