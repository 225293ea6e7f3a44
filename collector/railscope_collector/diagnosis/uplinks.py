"""Uplinks that carry less than before: congestion of one rail that its load does not explain.

Flows of healthy jobs collide on uplinks every day: packets are marked, NICs are paused, and which rail has most of it is
chance (ECMP) and lasts as long as the flows. Congestion is a fault of the uplinks only if one rail shows more of it
than the other rails of the same jobs, more than it did before under the same load, and the jobs lose time by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from railscope_collector.diagnosis import findings, job_steps
from railscope_collector.diagnosis.jobs import MAD_SCALE, connected_pods
from railscope_collector.diagnosis.network_detectors import MIN_PAUSED
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import (
    Floats,
    Positions,
    mean_known,
    median,
    median_known,
    or_zero,
)
from railscope_collector.workloads.job_roster import JobKey

PAST_SLOTS = 90
"""Slots of the past that are kept."""
GUARD_SLOTS = 30
"""Youngest slots that are no past, at most half of all: a fault that grows is not its own past."""
MIN_PAST_SLOTS = 9
SPREADS = 4.0
"""Spreads of the past beyond which a value is none of it."""
MIN_INSIDE, MAX_OUTSIDE = 0.7, 0.2
"""Share of the NICs below the leaf that must show it, and of those of the same jobs on other rails that may."""
MIN_MEMBERS = 2
MORE_LOAD = 1.25
"""Load of a receiver, relative to the usual one, from which on its congestion is that of its own link."""
MIN_TALK = 0.1
"""Share of its highest traffic above which a job offers load to the network, however slowly."""


class _Symptom(NamedTuple):
    """A symptom of congestion: the value at which its logarithm begins (0: linear), and the smallest difference that matters."""

    floor: float
    unit: float


_SYMPTOMS: Mapping[str, _Symptom] = MappingProxyType({
    "paused_share": _Symptom(0.0, 0.01),
    "notifications_handled": _Symptom(10.0, 1.0),
    "marked_share": _Symptom(1e-4, 1.0),
})  # fmt: skip
"""Those of senders, and of receivers: hosts cannot distinguish the ends of an uplink."""


_UNITS = np.array([each.unit for each in _SYMPTOMS.values()])[:, None]


class _Slot(NamedTuple):
    """Symptoms of all NICs in a slot, shape (symptoms, NICs), their differences from their peers, and the loads of the NICs."""

    values: NDArray[np.float32]
    differences: NDArray[np.float32]
    loads: NDArray[np.int64]


class Uplinks:
    """Congestion of all NICs in the past, by the load of the fabric at that time."""

    def __init__(self) -> None:
        self._past: deque[_Slot] = deque(maxlen=PAST_SLOTS)
        self._highest: dict[JobKey, float] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        """First and last slot in which a rail showed it: it may begin before a job loses time."""

    def find(self, view: findings.DiagnosisView) -> Iterator[findings.Finding]:
        """Yield leaves whose uplinks carry less than before."""
        crossing, loads, slow = self._jobs(view)
        values = np.stack([_transformed(view, name) for name in _SYMPTOMS])
        values[:, ~crossing] = np.nan
        differences = _differences(view, values)
        beyond = self._distances(values, differences, loads)
        affected: findings.Flags = np.any(beyond >= 1, axis=0)
        is_past = ~(beyond >= 1) & ~_disturbed(view)
        self._past.append(
            _Slot(
                np.where(is_past, values, np.nan).astype(np.float32),
                np.where(is_past, differences, np.nan).astype(np.float32),
                loads,
            )
        )
        slot = view.signals.slot
        lasting = _lasting(view)
        of_open = {rail: _leaves_of(view, each) for rail, each in lasting.items()}
        for rail, leaves in (_congested(view, crossing, affected) | of_open).items():
            first, last = self._seen.get(rail, (slot, slot))
            first = first if slot - last <= MAX_GAP_SLOTS else slot
            self._seen[rail] = first, slot
            below = np.concatenate([view.groups.leaves[leaf] for leaf in leaves])
            shown = below[(affected & crossing)[below]]
            if rail in lasting or slow[shown].any():
                onset_ns = view.timestamp_ns - (slot - first) * findings.SLOT_NS
                if not len(shown):  # the job is still slow: the NICs are those that showed it last
                    shown = np.array(lasting[rail].parts, np.intp)
                yield replace(_finding(view, leaves, np.sort(shown)), onset_ns=onset_ns)

    def _jobs(
        self, view: findings.DiagnosisView
    ) -> tuple[findings.Flags, NDArray[np.int64], findings.Flags]:
        """Return the NICs of jobs that exchange over uplinks, the loads around each NIC, and the NICs of slow ones of these jobs."""
        groups, send = view.groups, view.signals.nic["send"]
        crossing, slow = (np.zeros(len(send), np.bool_) for _ in range(2))
        talking = []
        for job in view.jobs:
            mean = float(or_zero(mean_known(send[job.nics])))
            self._highest[job.key] = max(self._highest.get(job.key, 0.0), mean)
            if mean <= max(MIN_TALK * self._highest[job.key], findings.MIN_EXCHANGE):
                continue
            talking.append(job)
            if len(np.unique(groups.nic_pod[job.nics])) > 1:
                crossing[job.nics] = True
                slow[job.nics] = _is_slow(view, job.key)
        for key in self._highest.keys() - {job.key for job in view.jobs}:
            del self._highest[key]
        component = connected_pods(groups, talking, np.zeros(0, np.intp))
        loads = np.zeros(len(component) + 1, np.int64)
        for job in talking:
            pods = groups.nic_pod[job.nics]
            loads[component[pods[pods >= 0][:1]]] += hash(job.key) % (1 << 40)
        of_pod = np.append(component, len(component))
        return crossing, loads[of_pod[groups.nic_pod]], slow

    def _distances(self, values: Floats, differences: Floats, loads: NDArray[np.int64]) -> Floats:
        """Return the lesser distance of values and differences from their past under the same load; NaN without such a past.

        A symptom below its unit is within that of any past: the past of such NICs, which are most of a large cluster, is not read.
        """
        found = np.where(values < _UNITS, 0.0, np.nan)
        columns = np.flatnonzero((values >= _UNITS).any(axis=0))
        count = len(self._past)
        past = list(self._past)[: count - min(GUARD_SLOTS, count // 2)]
        if len(past) >= MIN_PAST_SLOTS and len(columns):
            of_values, of_differences = (
                _distance(now[:, columns], self._rows(past, columns, loads[columns], number))
                for number, now in enumerate((values, differences))
            )
            found[:, columns] = np.minimum(of_values, of_differences)
        return found

    @staticmethod
    def _rows(
        past: list[_Slot], columns: Positions, loads: NDArray[np.int64], number: int
    ) -> Floats:
        """Return one of the fields of the slots for some NICs, shape (slots, symptoms, NICs); NaN under another load."""
        rows = np.full((len(past), len(_SYMPTOMS), len(columns)), np.nan)
        for row, slot in zip(rows, past, strict=True):
            is_known = columns < len(slot.loads)  # later NICs were not there yet
            earlier = columns[is_known]
            same = slot.loads[earlier] == loads[is_known]
            row[:, is_known] = np.where(same, slot[number][:, earlier], np.nan)
        return rows


def _distance(now: Floats, rows: Floats) -> Floats:
    """Return the distance from the past, relative to what would matter: a unit, the spread, or the highest values."""
    found = np.full(now.shape, np.nan)
    known = (~np.isnan(rows)).sum(axis=0)
    enough = known >= MIN_PAST_SLOTS
    ordered = np.sort(rows, axis=0)  # NaN last
    middle, high = (_centile(ordered, known, share) for share in (0.5, 0.95))
    spread = MAD_SCALE * _centile(np.sort(np.abs(rows - middle), axis=0), known, 0.5)
    scale = np.fmax(np.fmax(_UNITS, SPREADS * spread), high - middle)
    found[enough] = ((now - middle) / scale)[enough]
    return found


def _centile(ordered: Floats, known: Positions, share: float) -> Floats:
    places = np.rint(np.maximum(known - 1, 0) * share).astype(np.intp)
    found: Floats = np.take_along_axis(ordered, places[None], 0)[0]
    return found


def _transformed(view: findings.DiagnosisView, name: str) -> Floats:
    values, floor = view.signals.nic[name].astype(np.float64), _SYMPTOMS[name].floor
    return np.log1p(np.maximum(values, 0) / floor) if floor else values.copy()


def _differences(view: findings.DiagnosisView, values: Floats) -> Floats:
    """Return the differences of NICs from the usual one of their job."""
    found = np.full(values.shape, np.nan)
    for job in view.jobs:
        rows = values[:, job.nics]
        for number, row in enumerate(rows):
            known = row[~np.isnan(row)]
            if len(known) > MIN_MEMBERS:
                found[number, job.nics] = row - median(known)
    return found


MAX_GAP_SLOTS = 3
"""Slots between two that belong together."""
MIN_SLOW_SLOTS = 4
"""Evaluations of a minute whose mean speed must be lower: marks may last longer than what slows a job."""


def _disturbed(view: findings.DiagnosisView) -> findings.Flags:
    """Return the NICs of jobs that are slow or have a fault: they offer less load than they would, so that it shows no healthy past."""
    found = np.zeros(len(view.devices.nics), np.bool_)
    for job in view.jobs:
        found[job.nics] = view.states[job.key].is_slow or view.has_cause(job.key, "")
    return found


UPLINK_SPEED = 0.95
"""Speed relative to its past below which a job that spans pods is slower."""


def _is_slow(view: findings.DiagnosisView, key: JobKey) -> bool:
    """True if a job is slower than before, and its ranks spin: they wait for the network."""
    state = view.states[key]
    spins = not state.utilization_change < job_steps.MIN_BUSY_USE
    speeds = np.array(state.history.speeds[-findings.SLOTS_PER_MINUTE :])
    if view.has_cause(key, "uplink_congested"):
        return False
    return spins and bool(np.sum(speeds < UPLINK_SPEED) >= MIN_SLOW_SLOTS)


class _OpenUplinks(NamedTuple):
    """An open incident: its leaf, and the NICs that showed it last."""

    leaf: int
    parts: tuple[int, ...]


def _lasting(view: findings.DiagnosisView) -> dict[int, _OpenUplinks]:
    """Return the incident of each rail whose job is still slow."""
    found = {}
    for (name, cause), fault in view.open_faults.items():
        if name != "uplink_congested" or cause.position < 0:
            continue
        members = view.groups.leaves[cause.position]  # none if its NICs have other places now
        keys = fault.reach.jobs & view.states.keys()
        if len(members) and any(view.states[key].speed < UPLINK_SPEED for key in keys):
            rail = int(view.groups.nic_rail[members[0]])
            found[rail] = _OpenUplinks(cause.position, fault.parts)
    return found


def _leaves_of(view: findings.DiagnosisView, uplinks: _OpenUplinks) -> list[int]:
    """Return the leaf of an incident, and the other leaves of its NICs."""
    leaves = set(view.groups.nic_leaf[[*uplinks.parts]].tolist()) - {-1, uplinks.leaf}
    return [uplinks.leaf, *sorted(leaves)]


def _receive_more(view: findings.DiagnosisView) -> findings.Flags:
    """Return the NICs that receive more than before and than the usual one of their job: their own ports are the queue."""
    received = view.signals.nic["receive"]
    usual = view.base(DeviceKind.NIC, "receive").copy()
    for job in view.jobs:
        usual[job.nics] = np.fmax(usual[job.nics], median_known(received[job.nics]))
    return findings.above(received, MORE_LOAD * or_zero(usual))


def _congested(
    view: findings.DiagnosisView, crossing: findings.Flags, affected: findings.Flags
) -> dict[int, list[int]]:
    """Return the leaves of each rail whose uplinks are the smallest element that all affected NICs have in common.

    Below one leaf alone, most NICs must be affected: one may have a queue of its own. A flow of a ring affects one NIC at each end.
    """
    groups = view.groups
    is_paused = findings.above(view.signals.nic["paused_share"], MIN_PAUSED)
    # The queue of a receiver without a counter of marks may be crowded, too.
    is_unknown = np.isnan(view.signals.nic["marked_share"])
    crowded = (affected | is_unknown) & _receive_more(view)
    hits: dict[int, list[int]] = {}
    for leaf, members in enumerate(groups.leaves):
        inside = members[crossing[members]]
        if not affected[inside].any() or (is_paused & ~crossing)[members].any():
            continue
        rail = int(groups.nic_rail[members[0]])
        is_on_rail = groups.nic_rail == rail
        if (crowded & is_on_rail).any():
            continue  # its senders have the same symptoms
        of_rail = affected & is_on_rail
        is_alone = not of_rail[groups.nic_leaf != leaf].any()
        if is_alone and (len(inside) < MIN_MEMBERS or affected[inside].mean() < MIN_INSIDE):
            continue
        same_jobs = np.isin(view.job_of_nic, view.job_of_nic[inside])
        outside = crossing & same_jobs & (groups.nic_rail != rail)
        if not outside.any() or affected[outside].mean() <= MAX_OUTSIDE:
            hits.setdefault(rail, []).append(leaf)
    return hits


def _finding(view: findings.DiagnosisView, leaves: list[int], parts: Positions) -> findings.Finding:
    """Return the finding of a rail: its first leaf is the cause, the others are alternatives; `parts` are the NICs that show it."""
    groups, nic = view.groups, view.signals.nic
    names = [groups.leaf_names[leaf] for leaf in leaves]
    evidence = []
    for leaf, name in zip(leaves, names, strict=True):
        of_leaf = parts[groups.nic_leaf[parts] == leaf]
        signal = max(
            ("paused_share", "marked_share"), key=lambda s: np.nanmax(nic[s][of_leaf], initial=0.0)
        )
        value = float(np.nanmax(nic[signal][of_leaf], initial=0.0))
        evidence.append(
            findings.FindingEvidence(signal, value, 0.0, "other rails and baseline", name)
        )
    rail = view.devices.nics[int(groups.leaves[leaves[0]][0])].rail
    return findings.Finding(
        "uplink_congested",
        findings.Cause("leaf", leaves[0], names[0]),
        tuple(evidence),
        parts=tuple(parts.tolist()),
        alternatives=tuple(leaves[1:]),
        subject=f"uplinks of rail {rail}",
    )
