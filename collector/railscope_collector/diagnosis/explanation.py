"""Explanation: which class may be the effect of which other one, from one table in the order of facts to symptoms.

Columns: the class; what it disturbs around it; what it stands on, which others may disturb.

    pause, loss        along its rail, through the spines: it pauses switches
    losses             what passes its own link or leaf: the peers of its jobs
    stop, wait, slow   its jobs

A class may explain a later one that stands on what it disturbs, and any later one of its families. A class that is in no row
explains only its own parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Relation(StrEnum):
    """Property that a cause and its effect share."""

    DEVICE = "device"
    NODE = "node"
    RAIL = "rail"
    PEERS = "rail of a job"
    JOB = "job"


_TABLE = """
node_down            | pause losses stop wait slow |
switch_link_down     | pause loss slow             |
switch_link_errors   | pause loss slow             |
nic_lost             | pause losses stop wait slow |
nic_failed           | pause losses stop wait slow |
gpu_lost             | stop wait slow              |
gpu_unresponsive     | stop wait slow              |
gpu_memory_failed    | stop wait slow              |
ecc_uncorrectable    | stop wait slow              |
row_remap            | stop wait slow              |
xid_event            | stop wait slow              |
link_down            | pause losses stop wait slow |
link_speed_low       | pause slow                  |
transceiver_degraded | pause losses slow           |
link_flap            | pause losses slow           |
nvlink_errors        | stop wait slow              |
hw_slowdown          | wait slow                   |
thermal_straggler    | wait slow                   |
unprotected_traffic  | pause losses slow           |
pfc_storm            | pause loss stop slow        |
host_bound_receiver  | pause slow                  |
pcie_bound_receiver  | pause slow                  |
slow_receiver        | pause slow                  |
pcie_degraded        | wait slow                   |
cnp_ignored          | pause slow                  |
ecn_inactive         | pause slow                  |
cnp_not_sent         | pause slow                  |
lossless_broken      | pause loss slow             | loss losses
leaf_loss            | losses slow                 | loss losses
link_transmit_errors | losses slow                 | loss losses
incast_receiver      | pause slow                  | pause
storage_bound        | wait slow                   |
nccl_hang            | wait slow                   | stop
host_late            | wait slow                   | wait
gpu_straggler        | slow                        | wait
dataloader_stall     | slow                        | wait
ecn_late             | slow                        | pause loss losses
transport_retry      |                             | pause loss losses
paused_unlocalised   |                             | pause loss losses
job_slowdown         |                             | slow
"""
_FAMILIES = (
    (Relation.DEVICE, "nic_lost nic_failed link_down link_speed_low transceiver_degraded link_flap"),
    (Relation.DEVICE, "nic_lost nic_failed nic_fault"),
    (Relation.DEVICE, "nic_lost pfc_storm pcie_bound_receiver slow_receiver pcie_degraded incast_receiver"),
    (Relation.DEVICE, "link_speed_low incast_receiver"),
    (Relation.DEVICE, "gpu_lost gpu_unresponsive gpu_memory_failed ecc_uncorrectable row_remap"),
    (Relation.DEVICE, "gpu_lost gpu_unresponsive gpu_memory_failed ecc_uncorrectable xid_event"),
    (Relation.DEVICE, "gpu_lost nvlink_errors"),
    (Relation.DEVICE, "gpu_lost hw_slowdown thermal_straggler"),
    (Relation.DEVICE, "gpu_lost pcie_degraded"),
    (Relation.NODE, "node_down gpu_lost"),
    (Relation.NODE, "node_down gpu_unresponsive"),
    (Relation.NODE, "node_down link_down"),
    (Relation.NODE, "node_down link_flap"),
    (Relation.NODE, "gpu_lost xid_event"),
    (Relation.NODE, "gpu_unresponsive xid_event"),
    (Relation.NODE, "host_bound_receiver pcie_bound_receiver"),
    (Relation.NODE, "host_bound_receiver slow_receiver"),
    (Relation.NODE, "host_bound_receiver pcie_degraded"),
    (Relation.NODE, "hw_slowdown thermal_straggler"),
    (Relation.NODE, "transceiver_degraded link_transmit_errors"),
    (Relation.NODE, "link_flap link_transmit_errors"),
    (Relation.NODE, "unprotected_traffic link_transmit_errors"),
    (Relation.RAIL, "unprotected_traffic lossless_broken"),
    (Relation.RAIL, "switch_link_down switch_link_errors"),
    (Relation.RAIL, "ecn_inactive cnp_not_sent"),
    (Relation.RAIL, "ecn_late paused_unlocalised"),
)  # fmt: skip
"""Classes of one fault at one device, node or rail, the earlier of which explain the later."""
_PATHS = {"pause": Relation.RAIL, "loss": Relation.RAIL, "losses": Relation.PEERS}
"""Paths along which what is disturbed spreads; the others reach the jobs."""
_BOTH_ENDS = {"leaf_loss": Relation.PEERS}
"""Classes that both ends of the traffic show: the stronger one explains the other."""

_ROWS = [[each.split() for each in row.split("|")] for row in _TABLE.strip().splitlines()]
DISTURBS: Mapping[str, frozenset[str]] = MappingProxyType(
    {name: frozenset(disturbs) for (name,), disturbs, _ in _ROWS}
)
"""What each class disturbs around it."""
FABRIC = frozenset(name for name, disturbs in DISTURBS.items() if not disturbs.isdisjoint(_PATHS))
"""Classes of the network whose effects are on other nodes."""


def _edges() -> dict[str, dict[Relation, tuple[str, ...]]]:
    found: dict[str, dict[Relation, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for number, ((effect,), _, stands_on) in enumerate(_ROWS):
        for (cause,), disturbs, _ in _ROWS[:number]:
            for each in disturbs:
                if each in stands_on:
                    found[effect][_PATHS.get(each, Relation.JOB)][cause] = None
    for relation, family in _FAMILIES:
        names = family.split()
        for number, effect in enumerate(names):
            found[effect][relation] |= dict.fromkeys(names[:number])
    for name, relation in _BOTH_ENDS.items():
        found[name][relation][name] = None
    return {
        name: {key: tuple(causes) for key, causes in of.items() if causes}
        for name, of in found.items()
    }


EDGES: Mapping[str, Mapping[Relation, tuple[str, ...]]] = MappingProxyType(_edges())
"""Classes that may explain a class, by the property that both share."""
