"""State of the diagnosis that survives a restart: devices with their positions, incidents, totals, baselines.

Sums of slots are not saved: windows fill again within a minute. Two documents: the incidents, written at every change,
and the baselines, which are large and change slowly. Positions are those of the devices of the first document;
devices are only ever added, so older baselines fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.cluster_diagnosis import ClusterDiagnosis
from railscope_collector.diagnosis.devices import ClusterGpu, ClusterMount, ClusterNic
from railscope_collector.diagnosis.findings import JobHistory
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incident_table import ChangeRecord
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.jobs import PeerGroups
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.switch_fabric import SwitchPort
from railscope_collector.workloads.job_roster import JobKey

VERSION = 2
"""Version 1 is that of release 0.3.0: it is not read, and the incidents are found again."""
MAX_WAIT_SLOTS = 60
"""Maximum length of an interruption over which a wait of all ranks continues."""


class SavedStateError(ValueError):
    """A saved state cannot be used; the message states the reason."""


class SavedDiagnosis(msgspec.Struct, kw_only=True):
    """Incidents and devices; `slot` is the last one that was evaluated."""

    version: int = VERSION
    first_ns: int
    slot: int
    nodes: list[str]
    nics: list[ClusterNic]
    gpus: list[ClusterGpu]
    mounts: list[ClusterMount]
    leaf_names: list[str]
    incidents: list[Incident]
    opened: dict[str, int] = {}
    """Incidents opened since the first start, by class."""
    lost_seconds: list[tuple[str, str, float]] = []
    """Class, tenant and GPU-seconds lost to dropped incidents."""
    changes: list[ChangeRecord] = []
    """Newest changes of incidents, and all that are not acknowledged."""
    acknowledged: int = 0
    """Sequence of the last change that is in the audit log."""
    rank_events: list[NodeEvent] = []
    jobs: list[tuple[JobKey, JobHistory]] = []
    """Pauses and waits of jobs."""
    switch_links: list[tuple[SwitchPort, str]] = []
    """Ports with a link to another switch, and that switch."""


class SavedBaselines(msgspec.Struct, kw_only=True):
    """Rows of the baselines; `first_ns` is that of the diagnosis whose positions they have."""

    version: int = VERSION
    first_ns: int
    rows: dict[str, list[bytes]]


SavedT = TypeVar("SavedT", SavedDiagnosis, SavedBaselines)


def decode_diagnosis(content: bytes) -> SavedDiagnosis:
    """Decode a saved state. Raises SavedStateError."""
    saved = _decode(content, SavedDiagnosis, "state")
    if problem := next(_problems(saved), ""):
        message = f"invalid state of the diagnosis: {problem}"
        raise SavedStateError(message)
    return saved


def decode_baselines(content: bytes) -> SavedBaselines:
    """Decode saved baselines. Raises SavedStateError."""
    return _decode(content, SavedBaselines, "baselines")


def _decode(content: bytes, kind: type[SavedT], name: str) -> SavedT:
    try:
        saved = msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"invalid {name} of the diagnosis: {error}"
        raise SavedStateError(message) from error
    if saved.version != VERSION:
        message = f"invalid {name} of the diagnosis: version {saved.version}: expected {VERSION}"
        raise SavedStateError(message)
    return saved


def _problems(saved: SavedDiagnosis) -> Iterator[str]:
    """Yield what would make the state inconsistent: unknown classes, and positions of no device."""
    counts = {"nic": len(saved.nics), "gpu": len(saved.gpus), "leaf": len(saved.leaf_names)}
    for incident in saved.incidents:
        if incident.class_name not in CLASSES:
            yield f"unknown class {incident.class_name}"
        if incident.cause.position >= counts.get(incident.cause.kind, 1):
            yield f"unknown {incident.cause.kind} {incident.cause.position}"
        if any(position >= counts["nic"] for position in incident.victim_nics):
            yield f"unknown victim of {incident.incident_id}"


def set_back(saved: SavedDiagnosis, by_ns: int) -> None:
    """Move the times of a state to a clock that was set back; curves begin again."""
    saved.first_ns -= by_ns
    for incident in saved.incidents:
        incident.curves = []
        incident.onset_ns -= by_ns
        incident.detected_ns -= by_ns
        incident.ended_ns -= by_ns if incident.ended_ns else 0
        incident.ended_jobs = {key: ns - by_ns for key, ns in incident.ended_jobs.items()}
        for idle in incident.idle_gpus.values():
            idle.until_ns -= by_ns
    saved.rank_events = [
        each._replace(
            timestamp_ns=each.timestamp_ns - by_ns, read_ns=each.read_ns and each.read_ns - by_ns
        )
        for each in saved.rank_events
    ]


def resume(
    saved: SavedDiagnosis, slots: int, open_slots: int, slot: int, thresholds: DetectorThresholds
) -> ClusterDiagnosis:
    """Return a diagnosis that continues a saved one with a slot."""
    diagnosis = ClusterDiagnosis(
        saved.first_ns, slots, thresholds=thresholds, open_slots=open_slots
    )
    diagnosis.devices.restore(saved.nodes, saved.nics, saved.gpus, saved.mounts)
    diagnosis.groups = PeerGroups(diagnosis.devices, list(saved.leaf_names))
    diagnosis.tracker.resume(saved.incidents, slot)
    diagnosis.ranks.add(saved.rank_events, diagnosis.end_of(slot))
    for _, history in saved.jobs:
        # A job that waited until the state was saved is taken to have waited on, as its incident lasts on.
        if history.wait.lasts(saved.slot) and slot - saved.slot <= MAX_WAIT_SLOTS:
            history.wait.last_slot = slot
    diagnosis.resume_jobs(saved.jobs, slot)
    diagnosis.fabric.far_switches.update(saved.switch_links)
    diagnosis.begin(slot)
    return diagnosis
