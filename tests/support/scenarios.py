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
UPLINK_DEGRADED = """
seconds = 420
step_seconds = 10
seed = 5

[cluster]
pods = 2
nodes_per_pod = 3
uplinks = 0.8

[[jobs]]
name = "train"
nodes = [0, 1, 2, 3, 4, 5]
pattern = "all_to_all"
rate = 0.7
checkpoint_period_seconds = 0

[[faults]]
fault = "uplink_degraded"
begin_seconds = 300
strength = 0.9
indices = [3]
"""
"""Without its pod: `pods = [0]` or another follows."""
