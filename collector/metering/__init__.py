"""Metering: GPU time by holder and by state, exactly."""
