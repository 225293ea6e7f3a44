"""Lines that the demo prints: incidents as the API lists them, and the summary of the faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from railscope import api, figures
from railscope.incident_victims import affected_text
from railscope.timestamps import SECOND_NS, parse_timestamp
from railscope_collector.diagnosis.incident_classes import CLASSES, INCIDENT_RUNBOOK
from railscope_simulator.demo.faults import DemoFault, FaultChange

_MISSED = "not found"
_MAX_EARLY_SECONDS = 60
"""Time by which an onset may precede its fault: the windows of evidence are a minute at most."""


def fault_text(change: FaultChange, target: str) -> str:
    """Return the start or end of a fault, and the alerts that it raises: an incident inhibits those on its symptoms."""
    fault = change.fault
    if not change.begins:
        return f"FAULT ENDS    {fault.node}: {_title(fault)}; its alerts resolve within minutes"
    alerts = [INCIDENT_RUNBOOK] if fault.incident else fault.alerts
    expected = f"Expect {', '.join(alerts)} within {fault.within_seconds} s"
    return f"FAULT BEGINS  {fault.node}: {target}. {expected}"


def _title(fault: DemoFault) -> str:
    """Return a fault as its incident is called; one without an incident by its own name."""
    kind = CLASSES.get(fault.incident)
    return kind.title if kind else fault.name.replace("_", " ")


class FaultReport:
    """Faults of a demo that have begun, and the incidents that the diagnosis has opened since."""

    def __init__(self, started_wall_ns: int) -> None:
        self._started_wall_ns = started_wall_ns
        self._incidents: dict[str, api.IncidentDocument] = {}
        self.begun: list[FaultChange] = []

    def changes(self, rows: Iterable[api.IncidentDocument]) -> Iterator[str]:
        """Yield a text for each incident that has begun, ended or been explained since the last call."""
        for row in rows:
            before = self._incidents.get(row.id)
            self._incidents[row.id] = row
            if _state(row) != (_state(before) if before else "ended"):
                yield incident_text(row)

    def missed(self, seconds: float) -> list[DemoFault]:
        """Return the faults without an incident whose time for it has passed after some seconds of the demo."""
        return [change.fault for change in self.begun if self._outcome(change, seconds) == _MISSED]

    def summary(self, nodes: int, seconds: float) -> str:
        """Return what became of the faults in some seconds."""
        counts = Counter(self._outcome(change, seconds) for change in self.begun)
        outcomes = ", ".join(f"{number} {text}" for text, number in counts.items())
        begun = figures.count(len(self.begun), "fault") if self.begun else "No fault"
        names = ", ".join(f"{fault.name} on {fault.node}" for fault in self.missed(seconds))
        return (
            f"SUMMARY: {nodes} nodes ran. {begun} began{outcomes and f': {outcomes}'}."
            f"{names and f' NOT FOUND: {names}.'}"
        )

    def _outcome(self, change: FaultChange, seconds: float) -> str:
        """Return what became of a fault. An incident on its node in its time may have another class."""
        fault = change.fault
        if not fault.incident:
            return "with an alert only, by design"
        classes = {
            one.incident_class
            for one in self._incidents.values()
            if getattr(one.cause, "node", "") == fault.node
            and -_MAX_EARLY_SECONDS
            <= (parse_timestamp(one.onset) - self._started_wall_ns) / SECOND_NS - change.seconds
            <= fault.within_seconds
        }
        if classes:
            return (
                "found as incidents" if fault.incident in classes else "found as another incident"
            )
        is_late = change.seconds + fault.within_seconds > seconds
        return "just before the end" if is_late else _MISSED


def _state(one: api.IncidentDocument) -> str:
    return "ended" if one.ended else "explained" if one.explained_by else "open"


def incident_text(one: api.IncidentDocument) -> str:
    """Return an incident with its cause, its effect and the action."""
    if one.ended:
        return f"INCIDENT ENDS {one.title}"
    if one.explained_by:
        return f"EXPLAINED     {one.title}: an effect of incident {one.explained_by}"
    delay = (parse_timestamp(one.detected) - parse_timestamp(one.onset)) // SECOND_NS
    jobs = ", ".join(f"job {job.workload} of {job.tenant}" for job in one.jobs)
    return (
        f"INCIDENT      {one.severity}: {one.title}; found {delay} s after its onset;"
        f" affected: {jobs or affected_text(one) or 'none'}; {one.action}"
    )
