"""Curves of rails and jobs, sums and extremes of their devices in each evaluated slot of the last hour, and of the evidence of incidents.

A group takes 4 bytes for each curve and slot, about 20 kB; there are at most MAX_GROUPS. NaN is unknown: a slot that was not
evaluated, or one without a reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import findings, signals, step_period
from railscope_collector.diagnosis.findings import SLOTS_PER_MINUTE, DiagnosisView
from railscope_collector.diagnosis.incident_classes import part_kind
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import SIGNALS
from railscope_collector.diagnosis.slot_sums import Floats, Positions, mean_known
from railscope_collector.workloads.job_roster import JobKey

HISTORY_SLOTS = 360
MAX_GROUPS = 1000
"""Rails and jobs, about 20 MB; of more jobs, those with most GPUs are kept."""
GroupKey: TypeAlias = str | JobKey
"""A rail by its name, or a job."""


@dataclass(frozen=True, slots=True)
class GroupCurve:
    """A curve of a group: values of its devices, and their combination."""

    name: str
    label: str
    unit: str
    device: DeviceKind
    values: Callable[[signals.WindowSums], Floats]
    combine: Callable[[Floats], float]
    """Of the known values; at least one is known."""


def _signal(device: DeviceKind, name: str) -> Callable[[signals.WindowSums], Floats]:
    return signals.SIGNALS[device][name].formula


_NIC, _GPU = DeviceKind.NIC, DeviceKind.GPU
_Values: TypeAlias = Callable[[signals.WindowSums], Floats]
_ROWS: Sequence[tuple[str, str, str, DeviceKind, _Values, Callable[..., float]]] = (
    ("sent", "Sent by all NICs", "bytes per second", _NIC, lambda w: w.rate("rdma_sent_bytes", "port_sent_bytes"), np.sum),
    ("received", "Received by all NICs", "bytes per second", _NIC, lambda w: w.rate("rdma_received_bytes", "port_received_bytes"), np.sum),
    ("max_paused", "NIC that the switch pauses most", "ratio", _NIC, _signal(_NIC, "paused_share"), np.max),
    ("max_pausing", "NIC that pauses the switch most", "ratio", _NIC, _signal(_NIC, "pausing_share"), np.max),
    ("marks", "Marked packets received (ECN)", "per second", _NIC, _signal(_NIC, "marks"), np.sum),
    ("notifications", "Notifications sent (CNP)", "per second", _NIC, _signal(_NIC, "notifications_sent"), np.sum),
    ("out_of_order", "Packets out of sequence", "per second", _NIC, _signal(_NIC, "out_of_order"), np.sum),
    ("nics", "NICs with a reading", "NICs", _NIC, lambda w: w.rate("rdma_sent_bytes", "port_sent_bytes"), len),
    ("mean_utilization", "Mean utilization", "ratio", _GPU, _signal(_GPU, "utilization"), np.mean),
    ("min_utilization", "Lowest utilization", "ratio", _GPU, _signal(_GPU, "utilization"), np.min),
    ("power", "Power of all GPUs", "watts", _GPU, _signal(_GPU, "power"), np.sum),
    ("max_temperature", "Hottest GPU", "celsius", _GPU, _signal(_GPU, "temperature"), np.max),
    ("gpus", "GPUs with a reading", "GPUs", _GPU, _signal(_GPU, "utilization"), len),
)  # fmt: skip
GROUP_CURVES = tuple(GroupCurve(*row) for row in _ROWS)
STEP_CURVE = "step_period"
NAMES = (*(curve.name for curve in GROUP_CURVES), STEP_CURVE)
_POSITIONS = {name: position for position, name in enumerate(NAMES)}


class GroupPoints(NamedTuple):
    """Values of a curve of a group at the ends of the evaluated slots; NaN is unknown."""

    times_ns: NDArray[np.int64]
    values: Floats


class GroupSlot(msgspec.Struct, frozen=True):
    """Values of all curves of each group in one evaluated slot; null is unknown."""

    slot: int
    timestamp_ns: int
    groups: list[tuple[GroupKey, list[float | None]]]


def group_slot(
    view: findings.DiagnosisView,
    steps: Mapping[JobKey, step_period.StepTiming],
    max_groups: int = MAX_GROUPS,
) -> GroupSlot:
    """Return the values of the evaluated slot."""
    groups: dict[GroupKey, dict[DeviceKind, Positions]] = dict(_rails(view))
    jobs = sorted(view.jobs, key=lambda job: -len(job.gpus))
    for job in jobs[: max(max_groups - len(groups), 0)]:
        groups[job.key] = {DeviceKind.NIC: job.nics, DeviceKind.GPU: job.gpus}
    windows = {
        kind: signals.WindowSums(sums, view.signals.slot, 1)
        for kind, sums in view.devices.sums.items()
    }
    with np.errstate(invalid="ignore", divide="ignore"):
        values = [curve.values(windows[curve.device]) for curve in GROUP_CURVES]
    found: list[tuple[GroupKey, list[float | None]]] = []
    for key, positions in groups.items():
        row: list[float | None] = []
        for number, curve in enumerate(GROUP_CURVES):
            chosen = values[number][positions.get(curve.device, _NOTHING)]
            known_values = chosen[~np.isnan(chosen)]
            row.append(float(curve.combine(known_values)) if len(known_values) else None)
        step = steps.get(key) if isinstance(key, JobKey) else None
        found.append((key, [*row, step.period_seconds if step else None]))
    return GroupSlot(view.signals.slot, view.timestamp_ns, found)


@dataclass(slots=True)
class GroupHistory:
    """The last slots of all groups. One thread adds; others may read."""

    slots: int = HISTORY_SLOTS
    max_groups: int = MAX_GROUPS
    _values: dict[GroupKey, NDArray[np.float32]] = field(default_factory=dict)
    _last_slot: dict[GroupKey, int] = field(default_factory=dict)
    _ends_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """End of the slot at each place of the ring; 0 without an evaluation."""
    _slot: int = -1
    _origin_ns: int = 0
    """Start of slot 0."""

    @property
    def size_bytes(self) -> int:
        """Memory of all values."""
        return sum(values.nbytes for values in list(self._values.values()))

    def add(self, evaluated: GroupSlot) -> None:
        """Add an evaluated slot. One of a diagnosis that counts its slots from another time drops all before it."""
        slot, place = evaluated.slot, evaluated.slot % self.slots
        origin_ns = evaluated.timestamp_ns - slot * findings.SLOT_NS
        if origin_ns != self._origin_ns:
            self.clear()
            self._origin_ns, self._slot = origin_ns, -1
        if not len(self._ends_ns):
            self._ends_ns = np.zeros(self.slots, np.int64)
        for missed in range(max(self._slot + 1, slot - self.slots + 1), slot):
            self._ends_ns[missed % self.slots] = 0
        self._slot, self._ends_ns[place] = max(slot, self._slot), evaluated.timestamp_ns
        for key, values in evaluated.groups[: self.max_groups]:
            if len(values) == len(NAMES):
                self._row_of(key, slot)[:, place] = np.array(values, np.float32)
        self._forget(slot)

    def _row_of(self, key: GroupKey, slot: int) -> NDArray[np.float32]:
        """Return the values of a group, with unknown ones in the slots since its last one."""
        row = self._values.get(key)
        if row is None:
            row = self._values[key] = np.full((len(NAMES), self.slots), np.nan, np.float32)
        last_slot = self._last_slot.get(key, slot - 1)
        for missed in range(max(last_slot + 1, slot - self.slots + 1), slot):
            row[:, missed % self.slots] = np.nan
        self._last_slot[key] = max(slot, last_slot)
        return row

    def _forget(self, slot: int) -> None:
        """Drop the groups without a value in the ring, and the oldest ones above the bound."""
        by_age = sorted(self._last_slot, key=self._last_slot.__getitem__)
        excess = len(by_age) - self.max_groups
        for number, key in enumerate(by_age):
            if number < excess or self._last_slot[key] <= slot - self.slots:
                del self._last_slot[key], self._values[key]

    def clear(self) -> None:
        """Drop everything: the slots have other times."""
        self._values, self._last_slot = {}, {}
        self._ends_ns = np.zeros(0, np.int64)

    def read(self, key: GroupKey, name: str, from_ns: int, to_ns: int) -> GroupPoints | None:
        """Return the values of a curve in a period, oldest first; None for an unknown group."""
        values, last_slot = self._values.get(key), self._last_slot.get(key)
        if values is None or last_slot is None:
            return None
        ends_ns, row = self._ends_ns.copy(), values[_POSITIONS[name]].astype(np.float64)
        # Places after the last slot of a group that has ended still have values of an hour before.
        newest_ns = int(ends_ns[last_slot % self.slots])
        row[ends_ns > newest_ns] = np.nan
        chosen = np.flatnonzero((ends_ns >= max(from_ns, 1)) & (ends_ns <= to_ns))
        order = chosen[np.argsort(ends_ns[chosen], kind="stable")]
        return GroupPoints(ends_ns[order], row[order])


_NOTHING: Positions = np.zeros(0, np.intp)


def _rails(view: findings.DiagnosisView) -> dict[GroupKey, dict[DeviceKind, Positions]]:
    """Return the NICs of each rail."""
    groups, nics = view.groups, view.devices.nics
    found: dict[GroupKey, dict[DeviceKind, Positions]] = {}
    for number in np.unique(groups.nic_rail[groups.is_rail]).tolist():
        positions = np.flatnonzero(groups.is_rail & (groups.nic_rail == number))
        found[nics[positions[0]].rail] = {DeviceKind.NIC: positions}
    return found


# Evidence of incidents ---

BEFORE_SLOTS = 30
MAX_CURVES = 4
MAX_POINTS, FIRST_POINTS = 360, 120
"""Points of a curve; of a longer one, those of its beginning and its end are kept."""

_SLOT_NS = 60 * SECOND_NS // SLOTS_PER_MINUTE


class CurvePoint(NamedTuple):
    """Value of a signal in one slot, and the median of all devices of the kind; None and NaN are unknown."""

    timestamp_ns: int
    value: float | None
    peers: float | None


@dataclass(slots=True)
class EvidenceCurve:
    """One signal of the cause over time."""

    signal: str
    unit: str
    points: list[CurvePoint] = field(default_factory=list)
    has_peers: bool = True
    """False for a tenant, to which the median of all devices is not shown: it contains those of other tenants."""

    def add(self, point: CurvePoint) -> None:
        """Add a point."""
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            del self.points[FIRST_POINTS]


def extend_curves(curves: list[EvidenceCurve], view: DiagnosisView, incident: Incident) -> None:
    """Add the last slot to the curves of an incident; begin them with the slots before it opened."""
    members = _members(view, incident)
    kinds = {
        each.signal: kind
        for each in incident.evidence
        for kind in reversed(members)
        if each.signal in SIGNALS[kind] and len(members[kind])
    }
    if not curves:
        for name, kind in list(kinds.items())[:MAX_CURVES]:
            curve = EvidenceCurve(name, SIGNALS[kind][name].unit)
            for before in range(BEFORE_SLOTS - 1, 0, -1):
                curve.add(_point(view, kind, name, members[kind], before))
            curves.append(curve)
    for curve in curves:
        if curve.signal in kinds:
            kind = kinds[curve.signal]
            curve.add(_point(view, kind, curve.signal, members[kind], 0))


def _point(
    view: DiagnosisView, kind: DeviceKind, name: str, positions: Sequence[int], before: int
) -> CurvePoint:
    values = view.signals.table(kind, 1, before)[name]
    timestamp_ns = view.timestamp_ns - before * _SLOT_NS
    known_values = values[~np.isnan(values)]
    return CurvePoint(
        timestamp_ns,
        mean_known(values[np.asarray(positions, np.intp)]),
        float(np.median(known_values)) if len(known_values) else np.nan,
    )


def _members(view: DiagnosisView, incident: Incident) -> dict[DeviceKind, Sequence[int]]:
    """Return the devices whose mean is a curve, by kind: the cause, its parts or what it consists of."""
    cause, devices = incident.cause, view.devices
    if cause.kind == "nic":
        return {DeviceKind.NIC: [cause.position]}
    if cause.kind in {"gpu", "rack"}:
        return {DeviceKind.GPU: incident.parts or [cause.position]}
    if cause.kind == "node":
        node = devices.nodes[cause.name]
        parts = {part_kind(incident.class_name): incident.parts}
        nics = parts.get("nic") or tuple(node.nics.values())
        gpus = parts.get("gpu") or tuple(node.gpus.values())
        return {DeviceKind.NODE: [node.position], DeviceKind.NIC: nics, DeviceKind.GPU: gpus}
    if cause.kind == "leaf":
        return {DeviceKind.NIC: view.groups.leaves[cause.position].tolist()}
    if cause.kind == "storage":
        mounts = enumerate(devices.mounts)
        return {DeviceKind.MOUNT: [n for n, mount in mounts if mount.server == cause.name]}
    job = next((job for job in view.jobs if job.key == cause.job), None)
    return {DeviceKind.NIC: job.nics.tolist(), DeviceKind.GPU: job.gpus.tolist()} if job else {}
