"""Faults of a node that begin and end: each is a scenario with its own time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from railscope_simulator import conditions, driver_reports, port, scenarios
from railscope_simulator.spec import NodeSpec, TimeSpan


@dataclass(frozen=True, slots=True)
class FaultOccurrence:
    """Fault of a node for some time: the node with this fault, its start and end, and its scenario.

    The scenario has local time: its second half is the time of the occurrence.
    """

    spec: NodeSpec
    begin_ns: int
    end_ns: int
    scenario: conditions.Scenario

    @classmethod
    def from_spec(cls, spec: NodeSpec, begin_ns: int, length_ns: int) -> FaultOccurrence:
        """Return the fault that a spec names, at this time. Raises ValueError for an unknown scenario."""
        # Scenarios begin at half of their time.
        scenario = scenarios.scenario_of(spec, 2 * length_ns)
        return cls(spec, begin_ns, begin_ns + length_ns, scenario)

    @property
    def shift_ns(self) -> int:
        """Start of the scenario's local time."""
        return 2 * self.begin_ns - self.end_ns

    def acts(self, span: TimeSpan) -> bool:
        """True if a span ends within the fault."""
        return self.begin_ns <= span.end_ns < self.end_ns

    def local(self, span: TimeSpan) -> TimeSpan:
        """Convert a span to the scenario's local time."""
        return TimeSpan(span.start_ns - self.shift_ns, span.end_ns - self.shift_ns)

    def outages(self, rail: int | None) -> list[TimeSpan]:
        """Return the outages of a rail's link, none of them longer than the fault."""
        shift_ns = self.shift_ns
        whole = self.local(TimeSpan(self.begin_ns, self.end_ns))
        return [
            TimeSpan(outage.start_ns + shift_ns, min(outage.end_ns + shift_ns, self.end_ns))
            for outage in self.scenario.link_outages(rail, whole)
        ]


class FaultSchedule(conditions.Scenario):
    """Combined conditions of the faults of a node that are present."""

    def __init__(self, spec: NodeSpec) -> None:
        super().__init__(spec, 0)

    def faults_at(self, timestamp_ns: int) -> Sequence[FaultOccurrence]:
        """Return the faults that may be present at a time."""
        del timestamp_ns
        return ()

    def _acting(self, span: TimeSpan) -> list[FaultOccurrence]:
        return [fault for fault in self.faults_at(span.end_ns) if fault.acts(span)]

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """Return the combined effect of all faults on the job."""
        jobs = [fault.scenario.job(fault.local(span)) for fault in self._acting(span)]
        return conditions.JobConditions(
            present=min((job.present for job in jobs), default=1.0),
            exchange_speed=min((job.exchange_speed for job in jobs), default=1.0),
            hung=any(job.hung for job in jobs),
        )

    def port(self, rail: int | None, span: TimeSpan) -> conditions.PortConditions:
        """Return the effect of the first fault that is active on a port."""
        for fault in self._acting(span):
            if (
                found := fault.scenario.port(rail, fault.local(span))
            ) != conditions.PortConditions():
                return found
        return conditions.PortConditions()

    def gpu(self, index: int, span: TimeSpan) -> conditions.GpuConditions:
        """Return the effect of the first fault that is active on a GPU."""
        for fault in self._acting(span):
            if (
                found := fault.scenario.gpu(index, fault.local(span))
            ) != conditions.GpuConditions():
                return found
        return conditions.GpuConditions()

    def link_outages(self, rail: int | None, span: TimeSpan) -> tuple[TimeSpan, ...]:
        """Return the outages of all faults that may be present."""
        # Not only those that act: the end of an outage may be in a span that ends after the fault.
        faults = self.faults_at(span.end_ns)
        return tuple(outage for fault in faults for outage in fault.outages(rail))

    def unclaimed_gpu(self, span: TimeSpan) -> int | None:
        """Return the GPU that is used without a claim, if any."""
        found = (fault.scenario.unclaimed_gpu(fault.local(span)) for fault in self._acting(span))
        return next((index for index in found if index is not None), super().unclaimed_gpu(span))

    def resets(self, span: TimeSpan) -> Sequence[int]:
        """Return the GPUs that are reset because their fault ends in a span."""
        return [
            fault.spec.affected_index
            for fault in self.faults_at(span.end_ns)
            if span.passes(fault.end_ns) and driver_reports.affects_gpu(fault.spec)
        ]

    def onsets(self, span: TimeSpan) -> Sequence[tuple[int, conditions.Scenario]]:
        """Return the faults that begin in a span."""
        return [
            (onset_ns + fault.shift_ns, scenario)
            for fault in self.faults_at(span.end_ns)
            for onset_ns, scenario in fault.scenario.onsets(fault.local(span))
        ]


class NodeFaultSchedule(FaultSchedule):
    """Faults of one node, and the conditions that the fabric and the cluster's faults add."""

    def __init__(self, spec: NodeSpec, faults: Sequence[FaultOccurrence], *, has_job: bool) -> None:
        super().__init__(spec)
        self._faults = faults
        self._has_job = has_job
        self.errors: list[tuple[int, int, int]] = []
        self.ports: dict[int, conditions.PortConditions] = {}
        self.thermal_resistance, self.brake = [1.0] * spec.gpus, [0.0] * spec.gpus

    def faults_at(self, timestamp_ns: int) -> Sequence[FaultOccurrence]:
        """Return all faults of the node."""
        del timestamp_ns
        return self._faults

    def application_errors(self, span: TimeSpan) -> Sequence[tuple[int, int, int]]:
        """Return the errors of applications on the node."""
        return [error for error in self.errors if span.passes(error[0])]

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """Return the conditions of the processes on the node."""
        return super().job(span) if self._has_job else conditions.JobConditions(present=0.0)

    def own_port(self, rail: int, span: TimeSpan) -> conditions.PortConditions:
        """Return the conditions of a port without those that the fabric adds."""
        return super().port(rail, span)

    def port(self, rail: int | None, span: TimeSpan) -> conditions.PortConditions:
        """Return the conditions of a port."""
        scripted = super().port(rail, span)
        if rail is None or rail not in self.ports:
            return scripted
        added = self.ports[rail]
        return replace(
            added,
            margin_lost=max(scripted.margin_lost, added.margin_lost),
            lanes=scripted.lanes,
            pcie_halved=scripted.pcie_halved,
            pcie_errors=scripted.pcie_errors,
            removed=scripted.removed,
            settings=added.settings if scripted.settings == port.USUAL else scripted.settings,
            unprotected=scripted.unprotected,
            storm_warnings=scripted.storm_warnings,
            storm_errors=scripted.storm_errors,
        )

    def gpu(self, index: int, span: TimeSpan) -> conditions.GpuConditions:
        """Return the conditions of a GPU."""
        scripted = super().gpu(index, span)
        return replace(
            scripted,
            thermal_resistance=max(scripted.thermal_resistance, self.thermal_resistance[index]),
            brake=self.brake[index],
        )
