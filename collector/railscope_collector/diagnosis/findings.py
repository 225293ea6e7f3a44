"""Findings of detectors at one evaluation: class, cause and evidence; and the input of detectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railscope.timestamps import SECOND_NS
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.baselines import WORK_QUANTILE, Baselines
from railscope_collector.diagnosis.devices import ClusterDevices, SwitchQueue
from railscope_collector.diagnosis.incident_classes import Severity
from railscope_collector.diagnosis.jobs import ActiveJob, EndedJob, PeerGroups, connected_pods
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import ClusterSignals
from railscope_collector.diagnosis.slot_sums import Floats
from railscope_collector.workloads.job_roster import JobKey

Flags: TypeAlias = NDArray[np.bool_]

_MIN_CERTAINTY = 0.6
SLOTS_PER_MINUTE = 6
SLOT_NS = 60 * SECOND_NS // SLOTS_PER_MINUTE


class Cause(NamedTuple):
    """Entity that causes an incident: a kind, and its position or its name."""

    kind: str
    position: int = -1
    name: str = ""
    job: JobKey | None = None


CHANGE = "change of peers"
"""Comparison of a value relative to the past, not of the signal itself."""
EVENT = "event"
OWN_PAST = "relative to its past"
"""Comparison of a value that is a quotient, too."""
TIMES_PAST = "times its past"
"""Comparison of a value of which the threshold is the quotient."""


@dataclass(frozen=True, slots=True)
class FindingEvidence:
    """One value that supports a finding, and the value that it is compared with."""

    signal: str
    value: float
    threshold: float
    comparison: str
    """Meaning of the threshold: a limit, the median of peers, the device's own baseline."""
    device: str = ""
    job: JobKey | None = None
    """Job whose work or ranks the value shows, relative to its other devices or its past; None for a device as such."""
    slots: int | None = None
    """Slots over which the detector judges the signal; None for the usual window, 0 for a report, a setting or an age."""

    @property
    def is_change(self) -> bool:
        """True if the value is a change relative to that of peers, not a value of the signal."""
        return self.comparison == CHANGE

    @property
    def is_event(self) -> bool:
        """True if a driver reported it once, and no reading shows how long it lasts."""
        return self.comparison == EVENT

    def as_report(self, job: JobKey | None) -> FindingEvidence:
        """Return it as a report of an agent about a rank of a job."""
        return replace(self, job=job, slots=0)


Evidence: TypeAlias = tuple[FindingEvidence, ...]
"""Evidence of one finding; the first one determines its onset."""


MAX_SHOWN = 4
"""Devices of many whose values evidence contains."""


class Compared(NamedTuple):
    """A signal of all devices of a kind: its values and their limits, or one number for all."""

    signal: str
    values: Floats | float
    limits: Floats | float
    comparison: str = "limit"
    slots: int | None = None

    def of_nics(self, view: DiagnosisView, positions: Iterable[int]) -> Evidence:
        """Return the evidence of the first of some NICs."""
        return self.of(view.nic_name, positions)

    def of_gpus(self, view: DiagnosisView, positions: Iterable[int]) -> Evidence:
        """Return the evidence of the first of some GPUs."""
        return self.of(view.gpu_name, positions)

    def of(self, name_of: Callable[[int], str], positions: Iterable[int]) -> Evidence:
        """Return the evidence of the first of some devices, by a function that names them."""
        return tuple(
            FindingEvidence(
                self.signal,
                _at(self.values, at),
                _at(self.limits, at),
                self.comparison,
                name_of(int(at)),
                slots=self.slots,
            )
            for at in islice(positions, MAX_SHOWN)
        )


def _at(values: Floats | float, position: int) -> float:
    return float(values if isinstance(values, float) else values[position])


@dataclass(frozen=True, slots=True)
class Finding:
    """Conclusion of a detector at one evaluation."""

    incident_class: str
    cause: Cause
    evidence: Evidence
    strength: float = 1.0
    """Distance of the evidence from its threshold, from 0 to 1, relative to the largest one of the class."""
    severity: str = ""
    """Severity other than that of the class."""
    onset_ns: int = 0
    """Time of the event that shows the onset; 0 if it follows from the first evaluation."""
    alternatives: tuple[int, ...] = ()
    """Other leaves that hosts cannot distinguish from the cause."""
    parts: tuple[int, ...] = ()
    """Positions of the NICs or GPUs that a larger cause consists of."""
    detail: str = ""
    subject: str | Cause = ""
    """Identity of advice whose devices may change while it lasts; without it, the cause is the identity."""
    affected: tuple[Cause, ...] = ()
    """All entities that advice concerns."""
    min_evaluations: int = 0
    """Evaluations that must agree, where they are not those of the class."""
    queue: SwitchQueue | None = None
    """Queue of a switch at which switches show the cause."""
    is_confirmed: bool | None = None
    """True if the other end of a link counts the same, False if it contradicts; None if it is unknown."""
    onset_slots: int | None = None
    """Slots before the onset in which the fault may have begun; None for those of the first evidence."""

    @property
    def uncertain_slots(self) -> int | None:
        """Slots before the onset in which the fault may have begun; None for the usual window."""
        return self.evidence[0].slots if self.onset_slots is None else self.onset_slots

    def certainty(self, *, has_slow_jobs: bool) -> float:
        """Return the certainty of the conclusion, from 0.6 to 1; the lowest one if it is contradicted."""
        if self.is_confirmed is False:
            return _MIN_CERTAINTY
        strength = 1.0 if self.is_confirmed else min(1.0, self.strength)
        return _MIN_CERTAINTY + 0.3 * strength + 0.1 * has_slow_jobs


def of_devices(
    view: DiagnosisView,
    kind: DeviceKind,
    incident_class: str,
    hit: Flags,
    compared: Compared,
) -> Iterator[Finding]:
    """Yield a finding for each of the NICs, or of the GPUs, that show a fault."""
    name_of = view.gpu_name if kind is DeviceKind.GPU else view.nic_name
    for position in np.flatnonzero(hit).tolist():
        cause = Cause(kind.value, position)
        yield Finding(incident_class, cause, compared.of(name_of, [position]))


@dataclass(slots=True)
class JobWait:
    """Waits of all ranks of a job, as behind a checkpoint: the present one, and the longest that ended; in slots."""

    first_slot: int = 0
    last_slot: int = -9
    longest: int = 0

    def lasts(self, slot: int) -> bool:
        """True if the wait has not ended before a slot."""
        return slot - self.last_slot <= _MAX_WAIT_GAP

    def add(self, slot: int) -> int:
        """Add a slot in which all ranks wait; return the length of the wait."""
        if not self.lasts(slot):
            if self.last_slot >= 0:
                self.longest = max(self.longest, self._length(self.last_slot))
            self.first_slot = slot
        self.last_slot = slot
        return self._length(slot)

    def _length(self, slot: int) -> int:
        return slot - self.first_slot + 1


_MAX_WAIT_GAP = 3
MAX_PAUSE_SLOTS = 18
"""Longest pause of a job that is remembered: a longer one was none of its own."""


MAX_STEPS = 30
SPEED_SLOTS = 30
"""Evaluations over which the speed of a slow job counts: a checkpoint or an evaluation in between lowers few of them."""


@dataclass(slots=True)
class JobHistory:
    """Progress, pauses and waits of a job over all evaluations, in slots; -1 for none.

    Slots of a pause are those that were evaluated: an interruption of the diagnosis shows no pause.
    """

    progress_slot: int = -1
    """Last slot in which the job made progress."""
    pause_slots: int = 0
    """Slots without progress since then."""
    longest_pause_slots: int = 0
    """Longest time without progress from which the job continued."""
    resumed_slot: int = -1
    """First slot with progress after a minute without, or longer."""
    exchange_slot: int = -1
    """Last slot in whose minute its NICs sent data."""
    slow_speed: float = 0.0
    """While the job is slow, the speed below which it has been since then; else 0."""
    speeds: list[float] = field(default_factory=list)
    """Speeds at the last evaluations, at most SPEED_SLOTS; NaN unknown."""
    loss_slot: int = -1
    """Last slot whose loss of time an incident has."""
    wait: JobWait = field(default_factory=JobWait)
    steps: list[tuple[int, float]] = field(default_factory=list)
    """Last slot of a window and the period of the job's steps in it, in seconds; of the last MAX_STEPS minutes that show them."""

    def add(self, slot: int, *, progresses: bool, exchanges: bool, speed: float) -> None:
        """Add a slot."""
        self.speeds = [*self.speeds[1 - SPEED_SLOTS :], speed]
        if exchanges:
            self.exchange_slot = slot
        if not progresses:
            self.pause_slots += 1
            return
        if self.progress_slot >= 0:
            pause = min(self.pause_slots, MAX_PAUSE_SLOTS)
            self.longest_pause_slots = max(self.longest_pause_slots, pause)
            if pause >= SLOTS_PER_MINUTE:
                self.resumed_slot = slot
        self.progress_slot, self.pause_slots = slot, 0

    def restarts(self, slot: int) -> bool:
        """True if the job has continued after a pause within the last two minutes."""
        return self.resumed_slot >= 0 and slot - self.resumed_slot < 2 * SLOTS_PER_MINUTE


MAX_LOSING_SPEED = 0.95
"""Speed relative to its past below which a job loses time: beyond the noise of a minute."""
MORE_WORK_FACTOR = 1.05
"""A job whose GPUs have more than this many times their past activity, or else power, does other work and is not slow."""


@dataclass(slots=True)
class JobState:
    """State of a job at one evaluation, relative to its own past; 1 is as before, NaN unknown."""

    job: ActiveJob
    slow_speed: float
    """Speed below which the job is slow."""
    exchange: float = np.nan
    """Share of the line rate that its NICs send, in the last minute."""
    activity: float = np.nan
    exchange_change: float = np.nan
    utilization_change: float = np.nan
    activity_change: float = np.nan
    power_change: float = np.nan
    nvlink_change: float = np.nan
    exchange_now: float = np.nan
    utilization_now: float = np.nan
    """As `exchange_change`, and the mean, over the last 20 seconds."""
    history: JobHistory = field(default_factory=JobHistory)

    @property
    def speed(self) -> float:
        """Progress relative to the past, by the data that the ranks exchange per second: a step exchanges the same amount."""
        return float(np.fmax(self.exchange_change, self.nvlink_change))  # what slows lowers both

    @property
    def works_more(self) -> bool:
        """True if its GPUs work more than before: it exchanges less as its work is other, as with longer sequences."""
        change = self.power_change if np.isnan(self.activity_change) else self.activity_change
        return bool(change > MORE_WORK_FACTOR)

    @property
    def is_slow(self) -> bool:
        """True if the job progresses more slowly than before."""
        return bool(self.speed < self.slow_speed) and not self.works_more

    @property
    def losing_speed(self) -> float:
        """Speed below which the job loses time to a fault: it is slower than its own variation explains, as that of a service."""
        return min(self.slow_speed, MAX_LOSING_SPEED)

    @property
    def loses_time(self) -> bool:
        """True if the job loses time to a fault."""
        return bool(self.speed < self.losing_speed) and not self.works_more


class FaultReach(Protocol):
    """Reach of an open incident."""

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes of the cause."""

    @property
    def jobs(self) -> frozenset[JobKey]:
        """Jobs that it affects."""


class OpenFault(Protocol):
    """Severity and onset of an open incident, the parts of its cause, and its reach."""

    severity: Severity
    explained_by: str
    onset_ns: int

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts of its cause."""

    @property
    def reach(self) -> FaultReach:
        """Reach of the incident."""


MIN_EXCHANGE = 0.001
"""Load below which the NICs of a job, or of a node, exchange nothing."""
MIN_NVLINK_BYTES_PER_SECOND = 1e9
"""Bytes per second over NVLink of each GPU below which nothing moves: idle links carry some 100 kB per second."""


@dataclass(slots=True)
class DiagnosisView:
    """Input of the detectors at one evaluation."""

    signals: ClusterSignals
    groups: PeerGroups
    jobs: Sequence[ActiveJob]
    states: dict[JobKey, JobState]
    baselines: Baselines
    timestamp_ns: int
    thresholds: DetectorThresholds = DetectorThresholds()
    events: Sequence[NodeEvent] = ()
    """Events of the last window."""
    ended_jobs: Sequence[EndedJob] = ()
    open_faults: Mapping[tuple[str, Cause], OpenFault] = field(default_factory=dict)
    """Open incidents by class and cause."""
    stale_nodes: AbstractSet[str] = frozenset()
    """Nodes without samples: nothing is known of their devices."""
    job_of_nic: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    job_of_gpu: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    _connected_pods: NDArray[np.intp] | None = None

    @property
    def devices(self) -> ClusterDevices:
        """All devices."""
        return self.signals.devices

    def base(self, kind: DeviceKind, name: str, quantile: float | None = None) -> Floats:
        """Return the baseline of a signal, or another quantile of its past."""
        return self.baselines.usual(kind, name, self.devices.sums[kind].devices, quantile)

    def has_cause(self, job: JobKey, but: str) -> bool:
        """True if an open incident of another class than `but` explains why a job is slow."""
        return any(
            job in fault.reach.jobs and fault.severity != "info" and not fault.explained_by
            for (name, _), fault in self.open_faults.items()
            if name != but
        )

    def variation(self, kind: DeviceKind, name: str) -> Floats:
        """Return the usual variation of a signal of work: the difference of a high and a low quantile of its past."""
        return self.base(kind, name) - self.base(kind, name, 1 - WORK_QUANTILE)

    def pods_around(self, pods: Iterable[int]) -> frozenset[int]:
        """Return pods, and those with which they may exchange; all and -1 if one is unknown.

        Pause spreads through the spines to the senders of a NIC, and to others of their pods.
        """
        if self._connected_pods is None:
            load = np.fmax(self.signals.nic["send"], self.signals.nic["receive"])
            is_other = self.groups.is_rail & above(load, MIN_EXCHANGE)
            for job in self.jobs:
                is_other[job.nics] = False
            self._connected_pods = connected_pods(self.groups, self.jobs, np.flatnonzero(is_other))
        first, positions = self._connected_pods, np.unique(list(pods))
        if not len(positions) or positions[0] < 0:
            return frozenset(range(-1, len(first)))
        return frozenset(np.flatnonzero(np.isin(first, first[positions])).tolist())

    def rail_around(self, position: int) -> Flags:
        """Return the NICs of the rail of a NIC in the pods with which its own may exchange."""
        groups = self.groups
        pods = self.pods_around([int(groups.nic_pod[position])])
        of_rail = groups.nic_rail == groups.nic_rail[position]
        return np.asarray(of_rail & np.isin(groups.nic_pod, [-1, *pods]))

    def nic_name(self, position: int) -> str:
        """Return node and interface of a NIC."""
        nic = self.devices.nics[position]
        return f"{nic.node} {nic.interface}"

    def identity_of(self, cause: Cause) -> str:
        """Return kind and names of an entity: every diagnosis of the same cluster gives it the same ones."""
        if cause.kind == "nic":
            return f"nic {self.nic_name(cause.position)}"
        if cause.kind == "gpu":
            gpu = self.devices.gpus[cause.position]
            return f"gpu {gpu.node} {gpu.uuid or gpu.pci_address}"
        return f"{cause.kind} {tuple(cause.job) if cause.job else cause.name}"

    def gpu_name(self, position: int) -> str:
        """Return node and index of a GPU."""
        gpu = self.devices.gpus[position]
        return f"{gpu.node} GPU {gpu.index or gpu.uuid or gpu.pci_address}"


def above(values: Floats, limit: Floats | float) -> Flags:
    """Return where values are known and greater than a limit; unknown limits are ignored."""
    found: Flags = ~((values <= limit) | np.isnan(values))
    return found
