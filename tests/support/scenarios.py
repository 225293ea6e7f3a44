"""Scenarios of the simulated cluster that several tests run."""

SLOW_RECEIVER = """
seconds = 400
step_seconds = 10
seed = 3

[cluster]
nodes_per_pod = 4

[[jobs]]
name = "train"
nodes = [0, 1, 2]
checkpoint_period_seconds = 0

[[faults]]
fault = "slow_receiver"
begin_seconds = 300
strength = 0.6
nodes = [1]
indices = [3]
"""
