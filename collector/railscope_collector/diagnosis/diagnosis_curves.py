"""Curves of the evidence of incidents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from railscope import api
from railscope_collector.diagnosis.findings import SLOT_NS, DiagnosisView, Finding
from railscope_collector.diagnosis.incident_classes import part_kind
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import SIGNALS
from railscope_collector.diagnosis.slot_sums import mean_known

BEFORE_SLOTS = 30
MAX_CURVES = 4
MAX_POINTS, FIRST_POINTS = 360, 120
"""Points of a curve; of a longer one, those of its beginning and its end are kept."""


class CurvePoint(NamedTuple):
    """Value of a signal in one slot, and the median of all devices of the kind; NaN is unknown."""

    timestamp_ns: int
    value: float
    peers: float


@dataclass(slots=True)
class EvidenceCurve:
    """One signal of the cause over time."""

    signal: str
    unit: str
    points: list[CurvePoint] = field(default_factory=list)

    def add(self, point: CurvePoint) -> None:
        """Add a point."""
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            del self.points[FIRST_POINTS]

    def document(self) -> api.CurveDocument:
        """Return the curve as readers receive it."""
        points = (
            api.CurvePointDocument(timestamp_ns, _finite(value), _finite(peers))
            for timestamp_ns, value, peers in self.points
        )
        return api.CurveDocument(self.signal, self.unit, tuple(points))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def extend_curves(curves: list[EvidenceCurve], view: DiagnosisView, finding: Finding) -> None:
    """Add the last slot to the curves of an incident; begin them with the slots before it opened."""
    members = _members(view, finding)
    kinds = {
        each.signal: kind
        for each in finding.evidence
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
    timestamp_ns = view.timestamp_ns - before * SLOT_NS
    known_values = values[~np.isnan(values)]
    return CurvePoint(
        timestamp_ns,
        mean_known(values[np.asarray(positions, np.intp)]),
        float(np.median(known_values)) if len(known_values) else np.nan,
    )


def _members(view: DiagnosisView, finding: Finding) -> dict[DeviceKind, Sequence[int]]:
    """Return the devices whose mean is a curve, by kind: the cause, its parts or what it consists of."""
    cause, devices = finding.cause, view.devices
    if cause.kind == "nic":
        return {DeviceKind.NIC: [cause.position]}
    if cause.kind in {"gpu", "rack"}:
        return {DeviceKind.GPU: finding.parts or [cause.position]}
    if cause.kind == "node":
        node = devices.nodes[cause.name]
        parts = {part_kind(finding.incident_class): finding.parts}
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
