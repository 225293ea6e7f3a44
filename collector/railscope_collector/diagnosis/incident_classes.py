"""Classes of incidents: a closed list, with severity, persistence and action of each.

`min_evaluations` of `of_evaluations` consecutive evaluations must agree before an incident opens; hard evidence needs one. Reasons for
the numbers: with one evaluation every 10 seconds over a window of 30 seconds, 3 of 4 conclude a strong fault
about 30 to 40 seconds after its onset, and no single sample can open an incident.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from railscope_collector.diagnosis.quantities import LIMITS, DeviceKind


class Severity(StrEnum):
    """Severity of an incident."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    def is_above(self, other: Severity) -> bool:
        """True if this severity is the higher one."""
        order = list(Severity)
        return order.index(self) > order.index(other)


class ChangeKind(StrEnum):
    """Kind of a change of an incident."""

    OPENED = "opened"
    REOPENED = "reopened"
    ESCALATED = "escalated"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"
    CLOSED = "closed"


INCIDENT_RUNBOOK = "RailscopeIncident"
"""Alert on incidents, and its runbook with a section for each class."""


@dataclass(frozen=True, slots=True)
class IncidentClass:
    """A class of incidents.

    `title` names it in a few words, `text` is a sentence. `specificity` is the weight of its evidence: 1 for a report of the hardware, less for statistics.
    """

    name: str
    title: str
    text: str
    severity: Severity
    min_evaluations: int
    of_evaluations: int
    specificity: float
    action: str
    is_symptom: bool = False
    is_advice: bool = False
    """True for a state that lasts and costs: no fault, and nothing that a baseline should leave out."""
    slows_jobs: bool = True
    """False if only the knowledge about a node suffers, not its work: such an incident is no reason why a job is slow."""

    @property
    def runbook(self) -> str:
        """Path of its section in the runbook, on the site that the alert rules link to and in the console."""
        return f"/runbooks/{INCIDENT_RUNBOOK}#{self.name}"


_HARD, _STRONG, _GROUP, _SYMPTOM = 1.0, 0.8, 0.6, 0.3
_INFO, _WARNING, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL

_ROWS = [
    # Network
    ("pfc_storm", "Pause storm", "A NIC pauses its switch port nearly all the time.", _CRITICAL, 2, 3, _STRONG, "drain the node and reset the NIC; enable the PFC watchdog of the switch"),
    ("slow_receiver", "Slow receiver", "A NIC accepts data more slowly than it arrives, and pauses its switch port.", _WARNING, 2, 3, _STRONG, "check firmware and settings of the NIC; drain the node if it persists"),
    ("pcie_bound_receiver", "NIC slowed by PCIe", "PCIe accepts the data of a NIC too slowly; the NIC pauses its switch port.", _WARNING, 2, 3, _STRONG, "check width and speed of the PCIe link, ATS and ACS; reseat the NIC"),
    ("host_bound_receiver", "NICs slowed by the host", "The host accepts data too slowly: several NICs of a socket pause their switch ports.", _WARNING, 2, 3, _STRONG, "check memory bandwidth, IOMMU and other processes of the node"),
    ("incast_receiver", "Too many senders at once", "More data is sent to a NIC than its link carries.", _WARNING, 3, 4, _STRONG, "spread the senders' traffic, or place the job on other nodes"),
    ("ecn_inactive", "Switch does not mark packets", "A leaf switch marks no packets: only pause limits the senders.", _WARNING, 4, 6, _GROUP, "restore the ECN settings of the switch"),
    ("cnp_not_sent", "NIC sends no congestion notifications", "A NIC receives marked packets and sends no congestion notifications.", _WARNING, 4, 6, _STRONG, "restore the notification point of the NIC"),
    ("cnp_ignored", "Congestion notifications ignored", "NICs ignore congestion notifications.", _WARNING, 4, 6, _STRONG, "restore the reaction point of the NIC"),
    ("unprotected_traffic", "RDMA in a lossy priority", "RDMA traffic leaves in a priority that is not lossless.", _WARNING, 4, 6, _STRONG, "restore traffic class and priority mapping of the NIC"),
    ("lossless_broken", "Switch sends no pause", "A leaf switch sends no pause: packets that find no buffer are lost.", _WARNING, 4, 6, _GROUP, "restore the PFC settings of the switch"),
    ("leaf_loss", "Packets lost in a leaf", "A leaf switch loses packets that neither end counts.", _WARNING, 3, 5, _GROUP, "check drop counters, line modules and buffers of the switch"),
    ("transport_retry", "Many retransmissions", "A NIC retransmits far more than its peers.", _WARNING, 4, 6, _GROUP, "check adaptive retransmission of the NIC, and drops on its paths"),
    ("switch_link_errors", "Packets corrupted between switches", "A link between switches, or to a device without an agent, corrupts packets.", _WARNING, 3, 4, _STRONG, "clean or replace the transceivers and the cable at the switch port"),
    ("switch_link_down", "Link between switches down", "Links between switches are down that were up before.", _WARNING, 6, 6, _HARD, "check cables, transceivers and both switches; disable ports that are no longer used"),
    ("paused_unlocalised", "Pauses without a known cause", "NICs are paused, and no host shows the cause.", _INFO, 12, 14, _SYMPTOM, "read queues and pause counters of the switch"),
    # Links
    ("transceiver_degraded", "Degraded transceiver or cable", "A transceiver or cable corrupts received data.", _WARNING, 2, 3, _STRONG, "clean or replace the transceiver"),
    ("link_flap", "Link flapped", "The link of a NIC went down and came up again.", _WARNING, 1, 1, _HARD, "reseat or replace the cable"),
    ("link_down", "Link down", "The link of a NIC stays down.", _CRITICAL, 6, 6, _HARD, "check cable, transceivers and switch port"),
    ("link_speed_low", "Link too slow", "The link of a NIC has a lower speed than its peers.", _WARNING, 2, 2, _HARD, "replace the cable; check the switch port"),
    ("link_transmit_errors", "Data lost on a link", "Data that a NIC sends is lost on its link.", _WARNING, 3, 7, _GROUP, "replace the cable; read the error counters of the switch port"),
    ("nic_lost", "NIC lost", "A NIC has left the bus.", _CRITICAL, 1, 1, _HARD, "drain the node; reseat or replace the NIC"),
    ("nic_failed", "NIC failed", "The driver reports that a NIC has failed.", _CRITICAL, 1, 1, _HARD, "drain the node and reset the NIC"),
    ("pcie_degraded", "Degraded PCIe link", "A PCIe link has fewer lanes or a lower speed than the device supports.", _WARNING, 2, 3, _HARD, "reseat the device; check slot and riser"),
    # GPUs
    ("gpu_lost", "GPU lost", "A GPU has fallen off the bus.", _CRITICAL, 1, 1, _HARD, "drain the node; reset or replace the GPU"),
    ("gpu_unresponsive", "GPU does not respond", "The driver does not answer about a GPU.", _CRITICAL, 3, 3, _HARD, "drain and restart the node"),
    ("gpu_memory_failed", "GPU memory failed", "The memory of a GPU is defective, and a reset does not repair it.", _CRITICAL, 2, 3, _HARD, "drain the node and replace the GPU"),
    ("row_remap", "Memory row to be remapped", "A GPU waits for a memory row to be remapped.", _WARNING, 2, 3, _HARD, "reset the GPU when its job has ended"),
    ("ecc_uncorrectable", "Uncorrectable memory error", "A GPU has an uncorrectable memory error.", _CRITICAL, 2, 3, _HARD, "drain the node and reset the GPU"),
    ("nvlink_errors", "NVLink errors", "An NVLink of a GPU has errors.", _WARNING, 3, 4, _STRONG, "reset the GPU; check the NVLink connection"),
    ("thermal_straggler", "Thermal throttling", "Heat lowers the clock of a GPU, a node or a rack below that of its peers.", _WARNING, 3, 5, _STRONG, "check fans, heat sink and inlet temperature"),
    ("hw_slowdown", "Hardware slowdown", "Hardware forces GPUs to a low clock.", _WARNING, 3, 4, _STRONG, "check power supply and power limits of the chassis and the rack"),
    ("gpu_straggler", "Slow GPU", "A GPU, or a node, computes more slowly than its peers, which wait for it.", _WARNING, 5, 6, _STRONG, "run a diagnostic on the GPUs; exclude them"),
    ("xid_event", "GPU error (Xid)", "The driver reports an error of a GPU.", _WARNING, 1, 1, _HARD, "follow the action of the Xid"),
    # Jobs, nodes, storage
    ("storage_bound", "Slow storage", "Storage answers too slowly.", _WARNING, 4, 6, _GROUP, "check load and health of the file server"),
    ("dataloader_stall", "Job waits for input", "The input of a job arrives too late; its GPUs wait.", _WARNING, 8, 9, _GROUP, "check the data loader and its processes"),
    ("host_late", "Slow node", "A node launches work late; the GPUs of other nodes wait.", _WARNING, 5, 7, _STRONG, "check processes, control group limits and interrupts of the node"),
    ("nccl_hang", "Hung job", "A collective of a job does not end.", _CRITICAL, 11, 13, _GROUP, "collect the flight recorder; restart the job"),
    ("job_slowdown", "Slow job", "A job is slower than before, and no host shows the cause.", _INFO, 12, 14, _SYMPTOM, "compare the ranks with the collectives of the job"),
    ("node_down", "Node down", "A node does not respond, and its jobs wait for it.", _CRITICAL, 2, 2, _HARD, "check power and console of the node"),
    ("agent_partition", "Agent cut off", "The collector does not receive frames of a node whose job goes on.", _WARNING, 2, 2, _HARD, "check the management network and the agent of the node"),
    ("clock_skew", "Wrong clock", "The clock of a node is wrong.", _WARNING, 2, 3, _HARD, "repair time synchronization of the node; let the clock slew, do not step it under a job"),
]  # fmt: skip

_ADVICE_ROWS = [
    ("config_drift", "Settings differ", "Devices have other settings or versions than most of their peers, or than their switch ports.", _INFO, 12, 12, _HARD, "set what most of the peers or the switch ports have, or record the difference as intended"),
    ("cabling_fault", "Wrong cabling", "NICs end on leaf switches of other rails.", _INFO, 12, 12, _HARD, "move the cables to the leaves of their rails, or correct the rails of the node"),
    ("ecn_late", "Switch marks packets too late", "A leaf switch marks packets too late: it pauses senders before, or its queues grow deep.", _INFO, 12, 14, _GROUP, "set the ECN thresholds of the switch below its PFC thresholds"),
    ("headroom_low", "Switch headroom nearly used up", "A switch port has used nearly all of its headroom: packets of a lossless priority may be lost.", _WARNING, 6, 8, _HARD, "raise the headroom of the port's buffer profile; check the length of its cable; clear the peak on the switch, to see the next one"),
]  # fmt: skip

_SYMPTOMS = frozenset({"paused_unlocalised", "job_slowdown"})
_OF_KNOWLEDGE = frozenset({"agent_partition", "clock_skew"})

CLASSES = MappingProxyType(
    {
        row[0]: IncidentClass(
            *row, is_symptom=row[0] in _SYMPTOMS, slows_jobs=row[0] not in _OF_KNOWLEDGE
        )
        for row in _ROWS
    }
    | {row[0]: IncidentClass(*row, is_advice=True) for row in _ADVICE_ROWS}
    | {
        limit.incident: IncidentClass(
            name=limit.incident,
            title=limit.title,
            text=limit.text,
            severity=_WARNING,
            min_evaluations=2,
            of_evaluations=3,
            specificity=_HARD,
            action=limit.action,
        )
        for limit in LIMITS
        if limit.text
    }
)
"""All classes by name."""

_AREAS = {
    "gpu": ("gpu_lost", "gpu_unresponsive", "gpu_memory_failed", "row_remap", "ecc_uncorrectable", "nvlink_errors", "thermal_straggler", "hw_slowdown", "gpu_straggler", "xid_event"),
    "job": ("storage_bound", "dataloader_stall", "host_late", "nccl_hang", "job_slowdown"),
    "node": ("node_down", "agent_partition", "clock_skew"),
}  # fmt: skip


def part_kind(name: str) -> str:
    """Return the kind of the devices that a larger cause of a class consists of."""
    if name == "storage_bound":
        return "mount"
    return "gpu" if AREAS.get(name) == "gpu" else "nic"


AREAS = MappingProxyType(
    {name: area for area, names in _AREAS.items() for name in names}
    | {limit.incident: "gpu" for limit in LIMITS if limit.quantity.device is DeviceKind.GPU}
)
"""Area of the alerts on symptoms of a class; the others are of the network."""
