"""Comparison of the inventory with the devices that nodes report.

compare  comparison of one node, and of all
watch    comparison at each refresh of the views, with GPUs that are gone or retired
view     the result as cells and as JSON
"""
