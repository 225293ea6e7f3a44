"""Comparison of the inventory with the devices that nodes report."""
