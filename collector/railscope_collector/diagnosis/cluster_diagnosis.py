"""Diagnosis of a cluster: readings in, incidents out, one evaluation for each slot of time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import (
    Container,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from railscope import api
from railscope.timestamps import SECOND_NS
from railscope.wire import Batch
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis import (
    devices,
    findings,
    gpu_detectors,
    incident_effects,
    job_detectors,
    job_steps,
    jobs as job_groups,
    late_marks,
    leaf_detectors,
    limit_detector,
    link_detectors,
    network_detectors,
    node_detectors,
    rank_events,
    settings_advice,
    step_period,
    storage_detectors,
    straggler_detectors,
    switch_evidence,
    switch_fabric,
    switch_faults,
)
from railscope_collector.diagnosis.baselines import Baselines
from railscope_collector.diagnosis.incident_table import ReportedIncident, report_incident
from railscope_collector.diagnosis.incidents import (
    MAX_OPEN_PER_CAUSE_NODE,
    Incident,
    IncidentChange,
    IncidentTracker,
)
from railscope_collector.diagnosis.node_readings import (
    Clock,
    FaultHandler,
    FindSchema,
    NodeEvent,
    ReadingsCollector,
    raise_fault,
)
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import ClusterSignals
from railscope_collector.diagnosis.slot_sums import divide, mean_known, median_known
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.workloads.job_roster import JobKey

SLOT_SECONDS = findings.SLOT_NS // SECOND_NS
WINDOW_SLOTS = 3
MAX_START_SLOTS = 30
"""Slots after a start of the collector in which its running jobs may be unknown."""
ENDED_SLOTS = 6
"""Slots for which a job that has ended is remembered: a fault that ended it is concluded afterwards."""
MAX_SEEN_EVENTS = 4096
"""Events of a node by which repeated ones are recognized."""
IDLE_USE = 0.02
"""Utilization of GPUs without work: kernels that wait for other ranks keep them busy."""

EventKey: TypeAlias = tuple[str, tuple[str, ...], int]
"""Identity of an event of a node: name, entity, time since the boot."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Receipt of a node's frames: time on the collector's clock, and offset of the node's clock."""

    received_ns: int
    node: str
    offset_ns: int | None = None


MAX_OWN_LOAD = 1.05
"""Load of a NIC relative to its past up to which it is that of its job: what others send on its node is no progress of the job."""


class ClusterDiagnosis:
    """Readings of all nodes over time, and the incidents that follow from them.

    `first_ns` is the start of slot 0; `slots` is the number of slots that are kept, and `open_slots` that of the newest
    ones to which most readings belong: by default all, as for recordings, which are read node by node.
    """

    def __init__(
        self,
        first_ns: int,
        slots: int,
        claims: job_groups.ClaimedGpus | None = None,
        thresholds: DetectorThresholds = DetectorThresholds(),
        open_slots: int | None = None,
    ) -> None:
        self.thresholds = thresholds
        seconds = slots * SLOT_SECONDS
        if open_slots is None:
            open_slots = slots
        else:
            seconds = min(seconds, step_period.WINDOW_SECONDS + step_period.MAX_LATE_SECONDS)
        self.slot_ns = SLOT_SECONDS * SECOND_NS
        self.first_ns = first_ns
        self.devices = devices.ClusterDevices(slots, open_slots)
        self.readings = ReadingsCollector(
            self.devices,
            step_period.TrafficTraces(seconds),
            first_ns,
            self.slot_ns,
            self._report_fault,
        )
        self.claims = claims or job_groups.ClaimedGpus()
        self.tracker = IncidentTracker(first_ns, self.slot_ns)
        self.contacts: dict[str, node_detectors.NodeContact] = {}
        self.on_fault: FaultHandler = raise_fault
        """Receives the failure of a part, such as a detector or the frames of a node: the others continue unless it is raised."""
        self.has_receipts = False
        """True if receipts are recorded apart from samples."""
        self.has_captures = False
        """True if samples are present even if the collector did not receive them."""
        self.drift = settings_advice.ConfigDrift()
        self.fabric = switch_fabric.SwitchFabric()
        self._ignored_switch_batches = 0
        self.job_histories: dict[JobKey, findings.JobHistory] = {}
        self._resumed_jobs_until = 0
        self.baselines = Baselines()
        self._past_jobs = job_groups.PastJobs()
        self._minute = defaultdict[DeviceKind, job_groups.JobMinute](job_groups.JobMinute)
        self.view: findings.DiagnosisView | None = None
        """View of the last evaluation."""
        self.steps: dict[JobKey, api.JobStep] = {}
        """Steps of the jobs whose traffic shows them, as of the last minute."""
        self.groups: job_groups.PeerGroups | None = None
        """Groups of the devices as of the last evaluation."""
        self._ports: Mapping[tuple[str, str], tuple[str, str]] = {}
        self.ranks = rank_events.RankEvents()
        self._events: list[NodeEvent] = []
        self._seen_events: dict[str, dict[EventKey, None]] = defaultdict(dict)
        self._recent: deque[list[NodeEvent]] = deque(maxlen=WINDOW_SLOTS)
        self._ended: deque[list[job_groups.EndedJob]] = deque(maxlen=ENDED_SLOTS)
        self._receipts: list[Receipt] = []

    def begin(self, slot: int) -> None:
        """Begin slots up to one: readings of later ones are ignored."""
        for sums in self.devices.sums.values():
            sums.advance(slot)

    def resume_jobs(
        self, histories: Iterable[tuple[JobKey, findings.JobHistory]], slot: int
    ) -> None:
        """Continue the histories of jobs; those that do not run end once the running jobs are known."""
        self.job_histories.update(histories)
        self._resumed_jobs_until = slot + MAX_START_SLOTS

    def add_devices(
        self, node: str, batches: Iterable[Batch], find_schema: FindSchema, clock: Clock
    ) -> None:
        """Add the devices and settings of new schemas; before all batches, as a source may refer to the devices of another."""
        for batch in batches:
            entities = self.readings.add_devices(node, batch, find_schema)
            if entities:
                self.drift.settings.add(clock(batch.wall_ns[0]), node, entities)

    def add(self, node: str, run: str, batch: Batch, find_schema: FindSchema, clock: Clock) -> None:
        """Add a batch of a node. Events that an agent reads again after its restart are ignored."""
        try:
            self._add(node, run, batch, find_schema, clock)
        except Exception as fault:  # noqa: BLE001 - one node must not end the diagnosis of the others
            self._report_fault(f"frames of {node}", fault)

    def _add(
        self, node: str, run: str, batch: Batch, find_schema: FindSchema, clock: Clock
    ) -> None:
        self.add_devices(node, (batch,), find_schema, clock)
        for node_event in self.readings.add(node, run, batch, find_schema, clock):
            event, seen_keys = node_event.event, self._seen_events[node]
            key = (event.name, event.entity.key, event.boot_ns)
            if key not in seen_keys:
                seen_keys[key] = None
                self._events.append(node_event)
                if len(seen_keys) > MAX_SEEN_EVENTS:
                    del seen_keys[next(iter(seen_keys))]

    def add_switch(
        self, name: str, run: str, batches: Iterable[Batch], find_schema: FindSchema, clock: Clock
    ) -> None:
        """Add batches of a switch, unless there are too many."""
        switch = self.devices.switch(name.removeprefix(SWITCH_PREFIX))
        if switch is None:
            self._ignored_switch_batches += 1
            return
        for batch in batches:
            self.readings.add_devices(name, batch, find_schema)
            list(self.readings.add(name, run, batch, find_schema, clock))
            slot = self.readings.slot_of(clock(batch.wall_ns[-1]))
            if slot > switch.last_slot:
                period = slot - switch.last_slot if switch.last_slot >= 0 else 1
                switch.period, switch.last_slot = period, slot

    def add_event(self, node_event: NodeEvent) -> None:
        """Add an event."""
        self._events.append(node_event)

    def add_receipt(self, receipt: Receipt) -> None:
        """Add a receipt."""
        self._receipts.append(receipt)

    def arrange(self) -> None:
        """Complete additions: add the batches that wait, and order events and receipts by time."""
        self.readings.flush()
        self._events.sort(key=lambda node_event: (node_event.known_ns, node_event.timestamp_ns))
        self._receipts.sort(key=lambda receipt: receipt.received_ns)

    def end_of(self, slot: int) -> int:
        """Return the end of a slot on the collector's clock."""
        return self.first_ns + (slot + 1) * self.slot_ns

    def evaluate(
        self,
        slot: int,
        running_jobs: Mapping[JobKey, Iterable[str]] | None = None,
        jobs_ns: int = 0,
    ) -> list[IncidentChange] | None:
        """Evaluate the slots up to one; return the changes of incidents, None after a failure.

        `running_jobs` are the GPUs of each job, at `jobs_ns`, which may be later than the slot; None: by the claims in the events.
        """
        try:
            return self._evaluate(slot, running_jobs, jobs_ns)
        except Exception as fault:  # noqa: BLE001 - the next evaluation may succeed
            self._report_fault("evaluation", fault)
            return None

    def _report_fault(self, part: str, fault: Exception) -> None:
        self.on_fault(part, fault)

    def _evaluate(
        self, slot: int, running_jobs: Mapping[JobKey, Iterable[str]] | None, jobs_ns: int
    ) -> list[IncidentChange]:
        now_ns = self.end_of(slot)
        for sums in self.devices.sums.values():
            sums.settle(slot)
        events = self._take_events(now_ns)
        if running_jobs is None:
            for node_event in events:
                self.claims.add(node_event)
        self._recent.append(events)
        self.ranks.add(events, now_ns)
        self._take_receipts(now_ns)
        groups = self._update_groups()
        signals = ClusterSignals(self.devices, slot, WINDOW_SLOTS)
        if running_jobs is None:
            running_jobs, jobs_ns = self.claims.jobs_at(now_ns), now_ns
        jobs = job_groups.active_jobs(self.devices, groups, running_jobs)
        recent = [node_event for of_slot in self._recent for node_event in of_slot]
        ended_jobs = self._ended_jobs({job.key for job in jobs}, max(now_ns, jobs_ns))
        view = self.view = findings.DiagnosisView(
            signals,
            groups,
            jobs,
            {},
            self.baselines,
            now_ns,
            self.thresholds,
            recent,
            ended_jobs,
            {(each.class_name, each.cause): each for each in self.tracker.open},
            self._stale_nodes(slot),
        )
        view.job_of_nic = _job_numbers(jobs, len(self.devices.nics), gpus=False)
        view.job_of_gpu = _job_numbers(jobs, len(self.devices.gpus), gpus=True)
        self.baselines.set_jobs(self._past_jobs.update(self.devices, jobs))
        view.states = {job.key: _job_state(view, job) for job in jobs}
        self._add_progress(view, slot)
        self._add_to_minute(view)
        with np.errstate(invalid="ignore", divide="ignore"):
            switches = switch_fabric.SwitchView(view, self.fabric)
            whole = node_detectors.merge_into_nodes(view, self._findings(view, switches))
            found = switch_evidence.refine(switches, self.ranks.name_paths(view, whole))
            changed = self.tracker.update(view, found)
            incident_effects.update_effects(view, self.tracker.open)
        if slot % findings.SLOTS_PER_MINUTE == findings.SLOTS_PER_MINUTE - 1:
            self.steps = self._find_steps(jobs, slot)
            self._add_to_baselines(view)
            self._minute = defaultdict(job_groups.JobMinute)
        signals.clear()
        return changed

    def _stale_nodes(self, slot: int) -> set[str]:
        """Return the nodes without a sample in the last minute."""
        first, last_slots = slot - findings.SLOTS_PER_MINUTE, self.readings.last_slots
        return {name for name in self.devices.nodes if last_slots.get(name, -1) < first}

    def _ended_jobs(self, running: Container[JobKey], end_ns: int) -> list[job_groups.EndedJob]:
        if self.view is not None:
            ended = (job for job in self.view.jobs if job.key not in running)
            self._ended.append([job_groups.EndedJob(job, end_ns) for job in ended])
        return [each for slot in self._ended for each in slot if each.job.key not in running]

    def _add_progress(self, view: findings.DiagnosisView, slot: int) -> None:
        for key, state in view.states.items():
            history = state.history = self.job_histories.setdefault(key, state.history)
            # The variation of a slow job soon includes that it is slow.
            state.slow_speed = max(state.slow_speed, history.slow_speed)
            history.slow_speed = state.slow_speed if state.is_slow else 0.0
            history.add(
                slot,
                progresses=state.exchange_now >= node_detectors.STALLED_SPEED,
                exchanges=state.exchange >= findings.MIN_EXCHANGE,
                speed=state.speed,
            )
        if slot >= self._resumed_jobs_until:
            for key in self.job_histories.keys() - view.states.keys():
                del self.job_histories[key]

    def _find_steps(
        self, jobs: Iterable[job_groups.ActiveJob], slot: int
    ) -> dict[JobKey, api.JobStep]:
        end, traces = (slot + 1) * SLOT_SECONDS, self.readings.traces
        found = {
            job.key: step_period.find_step(traces.mean(job.nics, end, step_period.WINDOW_SECONDS))
            for job in jobs
            if len(job.gpus) > 1  # one rank exchanges nothing: its traffic is storage
        }
        steps = {key: step for key, step in found.items() if step is not None}
        for key, step in steps.items():
            past = self.job_histories[key].steps
            past.append((slot, step.period_seconds))
            del past[: -findings.MAX_STEPS]
        return steps

    def report(self, incident: Incident) -> ReportedIncident:
        """Return an incident as it is published."""
        groups = self.groups or job_groups.PeerGroups(self.devices)
        seconds, shown_ns = float(SLOT_SECONDS * WINDOW_SLOTS), self.end_of(incident.last_slot)
        return report_incident(incident, self.devices, groups, seconds, shown_ns)

    def exceeded_limits(self) -> Iterator[str]:
        """Yield a line for each bound that the input exceeded: the evaluation lacks the rest."""
        for node in self.devices.nodes.values():
            if node.has_ignored_devices:
                yield f"node {node.name}: devices ignored: expected at most {devices.MAX_DEVICES_PER_NODE} of a kind"
        for switch in self.devices.switches.values():
            if switch.has_ignored_devices:
                yield f"switch {switch.name}: ports and queues ignored: expected at most {devices.MAX_PARTS_PER_SWITCH}"
        if self._ignored_switch_batches:
            yield f"frames of switches ignored {self._ignored_switch_batches} times: expected at most {devices.MAX_SWITCHES} switches"
        if self.claims.ignored_claims:
            count, limit = self.claims.ignored_claims, job_groups.MAX_CLAIMS_PER_GPU
            yield f"{count} claims ignored: expected at most {limit} of a GPU"
        if self.tracker.ignored_findings:
            yield f"{self.tracker.ignored_findings} findings ignored: expected at most {MAX_OPEN_PER_CAUSE_NODE} of a node at once"

    def _findings(
        self, view: findings.DiagnosisView, switches: switch_fabric.SwitchView
    ) -> Iterator[findings.Finding]:
        for found in self._detectors(view, switches):
            try:
                yield from found
            except Exception as fault:  # noqa: BLE001 - a defect of one detector must not end the others
                name = getattr(found, "__qualname__", "")
                self._report_fault(f"detector {name}", fault)

    def _detectors(
        self, view: findings.DiagnosisView, switches: switch_fabric.SwitchView
    ) -> tuple[Iterator[findings.Finding], ...]:
        return (
            network_detectors.slow_receivers(view),
            network_detectors.incast_receivers(view),
            network_detectors.congestion_control_faults(view),
            network_detectors.retransmitting_nics(view),
            leaf_detectors.faulty_leaves(view),
            leaf_detectors.unmarked_leaves(view),
            leaf_detectors.overflowing_leaves(view),
            leaf_detectors.paused_leaves(view),
            link_detectors.link_faults(view),
            gpu_detectors.xid_events(view),
            gpu_detectors.reported_gpu_faults(view),
            limit_detector.exceeded_limits(view),
            self.ranks.name_ranks(view, gpu_detectors.slow_clocks(view)),
            self.ranks.late_gpus(view, straggler_detectors.gpu_stragglers(view)),
            storage_detectors.slow_storage(view),
            job_detectors.jobs_without_input(view),
            job_detectors.late_hosts(view),
            self.ranks.name_ranks(view, job_detectors.hung_jobs(view)),
            self.ranks.name_ranks(view, job_detectors.slow_jobs(view)),
            node_detectors.stale_nodes(
                view,
                self.contacts,
                self.readings.sample_slots if self.has_captures else None,
                has_receipts=self.has_receipts,
            ),
            node_detectors.wrong_clocks(view, self.contacts),
            self.drift.findings(view),
            # Before what hosts show of the same leaf.
            switch_faults.switch_faults(switches),
            late_marks.late_marks(view),
        )

    def _update_groups(self) -> job_groups.PeerGroups:
        """Return the groups of the devices with their present places."""
        ports, groups, devices = self.fabric.ports, self.groups, self.devices
        if groups is None or groups.version != devices.version or ports is not self._ports:
            self._ports = ports
            devices.place_nics(ports, self.fabric.announced)
            if groups is None or groups.version != devices.version:
                groups = job_groups.PeerGroups(devices, groups.leaf_names if groups else [])
                self.groups = groups
        return groups

    def _take_events(self, now_ns: int) -> list[NodeEvent]:
        count = bisect_right(self._events, now_ns, key=lambda node_event: node_event.known_ns)
        taken, self._events = self._events[:count], self._events[count:]
        for node_event in taken:
            node = self.devices.nodes.get(node_event.node)
            if node_event.event.name == "xid" and node:
                self.devices.add_gpu_of_event(node, "".join(node_event.event.entity.key[:1]))
        return taken

    def _take_receipts(self, now_ns: int) -> None:
        count = bisect_right(self._receipts, now_ns, key=lambda receipt: receipt.received_ns)
        for receipt in self._receipts[:count]:
            contact = self.contacts.setdefault(receipt.node, node_detectors.NodeContact())
            contact.add(receipt.received_ns, receipt.offset_ns)
            self.devices.node(receipt.node)  # frames may follow later, or be invalid
        self._receipts = self._receipts[count:]
        for name in [name for name, each in self.contacts.items() if each.is_lost(now_ns)]:
            del self.contacts[name]

    def _add_to_minute(self, view: findings.DiagnosisView) -> None:
        groups, used = view.groups, view.signals.table(DeviceKind.GPU, 1)["utilization"]
        received = view.signals.table(DeviceKind.NIC, 1)["receive"]
        of_jobs = np.array([*(mean_known(used[job.gpus]) for job in view.jobs), np.nan])
        is_measured, count = ~np.isnan(used), len(self.devices.node_names)
        sums = np.bincount(groups.gpu_node[is_measured], used[is_measured], count).astype(float)
        counts = np.bincount(groups.gpu_node[is_measured], minlength=count).astype(float)
        of_nics = divide(sums, counts)[groups.nic_node]
        for minute, jobs, uses, is_known in (
            (self._minute[DeviceKind.GPU], view.job_of_gpu, used, is_measured),
            (self._minute[DeviceKind.NIC], view.job_of_nic, of_nics, ~np.isnan(received)),
        ):
            is_idle = np.where(jobs >= 0, of_jobs[jobs], uses) <= IDLE_USE
            minute.add(jobs, is_idle, is_known)

    def _add_to_baselines(self, view: findings.DiagnosisView) -> None:
        """Add the last minute, except of devices with an open incident; those of new incidents lose those before it, too.

        An incident that opens again drops nothing: a device that flaps must not erase the past of its jobs.
        """
        lasting = [each for each in self.tracker.open if not each.incident_class.is_advice]
        minute_ns = view.timestamp_ns - findings.SLOTS_PER_MINUTE * self.slot_ns
        begun = incident_effects.newly_affected_devices(view, lasting, minute_ns)
        self.baselines.drop_gap(begun)
        excluded = incident_effects.affected_devices(view, lasting)
        held_devices = incident_effects.held_devices(view, lasting)
        for kind, minute in self._minute.items():
            excluded[kind] |= minute.interrupted
        gaps = {"job_gap": job_detectors.node_gaps(view)}
        self.baselines.add_minute(
            lambda kind: view.signals.table(kind, findings.SLOTS_PER_MINUTE),
            excluded,
            held_devices,
            gaps,
        )


def _job_numbers(
    jobs: list[job_groups.ActiveJob], count: int, *, gpus: bool
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    numbers = np.full(count, -1, np.intp)
    for number, job in enumerate(jobs):
        numbers[job.gpus if gpus else job.nics] = number
    return numbers


SLOW_VARIATION_FACTOR = 2.0
"""A slow job has lost this many times its usual variation of speed."""


def _job_state(view: findings.DiagnosisView, job: job_groups.ActiveJob) -> findings.JobState:
    """Return the state of a job, relative to its past."""
    nic = view.signals.table(DeviceKind.NIC, findings.SLOTS_PER_MINUTE)
    gpu = view.signals.table(DeviceKind.GPU, findings.SLOTS_PER_MINUTE)
    state, nics = findings.JobState(job, view.thresholds.jobs.slow_speed), job.exchange_nics
    state.exchange = mean_known(nic["send"][job.nics])
    newest = view.signals.table(DeviceKind.GPU, 2)
    state.utilization_now = mean_known(newest["utilization"][job.gpus])
    state.activity = mean_known(gpu["activity"][job.gpus])
    usual = view.base(DeviceKind.NIC, "send")[nics]
    past = mean_known(usual)
    if past > findings.MIN_EXCHANGE:  # a job that exchanges nothing has no such measure
        own = np.fmin(nic["send"][nics], MAX_OWN_LOAD * usual)
        state.exchange_change = mean_known(own) / past
        low = mean_known(view.base(DeviceKind.NIC, "send", job_steps.LOW_QUANTILE)[nics])
        max_loss = SLOW_VARIATION_FACTOR * (1 - low / past)
        state.slow_speed = min(state.slow_speed, 1 - max_loss)
        state.exchange_now = mean_known(view.signals.table(DeviceKind.NIC, 2)["send"][nics]) / past
    for name, least in (("utilization", 0.0), ("nvlink", findings.MIN_NVLINK_BYTES_PER_SECOND)):
        past = mean_known(view.base(DeviceKind.GPU, name)[job.gpus])
        if past > least:
            setattr(state, f"{name}_change", mean_known(gpu[name][job.gpus]) / past)
    for name in ("activity", "power"):  # those of few ranks that work more are left out
        changes = divide(gpu[name][job.gpus], view.base(DeviceKind.GPU, name)[job.gpus])
        setattr(state, f"{name}_change", median_known(changes))
    return state
