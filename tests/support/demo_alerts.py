"""Compares the alerts of a Prometheus with the faults that a demo has recorded.

By hand, beside `make demo` and a Prometheus with all rules:

    .venv/bin/python -m tests.support.demo_alerts .demo/faults.jsonl http://127.0.0.1:19090
"""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from railscope.timestamps import SECOND_NS, parse_timestamp

STEP_SECONDS = 5
ALWAYS_FIRES = "RailscopeDeadMansSwitch"
INCIDENT, REACH = "RailscopeIncident", "RailscopeIncidentReach"
INCIDENT_RESOLVED_SECONDS = 120 + 600 + 60
"""From the end of a fault until the alert on its incident has resolved: the incident ends, and the alert fires on for 10 minutes."""
REACH_EARLIER_SECONDS, REACH_LATER_SECONDS = 30, 300 + 60
"""An incident is known until 15 minutes after its end by alerts on what it touches; their rules are evaluated at another time."""

Span = tuple[float, float]


@dataclass(frozen=True)
class RecordedFault:
    """A fault of the record; times are in seconds since the epoch, without `end` it continues.

    `incident` is the class of the incident that the diagnosis opens for it, empty without one, and `device` the name of its
    cause on the node.
    """

    name: str
    node: str
    begin: float
    end: float | None
    alerts: frozenset[str]
    within: float
    resolved_within: float
    incident: str = ""
    device: str = ""

    @property
    def expected(self) -> frozenset[str]:
        """Names of the alerts that must fire."""
        return self.alerts | {INCIDENT} if self.incident else self.alerts

    def raises(self, firing: AlertFiring) -> bool:
        """True if an alert belongs to this fault: one on an incident if it states the class and the cause."""
        if firing.alert == INCIDENT:
            stated = firing.incident_class, firing.node, firing.device
            return stated == (self.incident, self.node, self.device)
        return firing.alert in self.alerts and firing.node in {"", self.node}

    def span_of(self, alert: str, now: float) -> Span:
        """Return the time in which an alert of this fault may fire."""
        end = now if self.end is None else self.end
        lasts = INCIDENT_RESOLVED_SECONDS if alert == INCIDENT else self.resolved_within
        return self.begin, end + lasts

    def is_shown_by(self, firing: AlertFiring, now: float) -> bool:
        """True if an alert belongs to this fault, and fires in its time or in a part of it."""
        begin, end = self.span_of(firing.alert, now)
        return self.raises(firing) and begin <= firing.end and firing.begin <= end


@dataclass(frozen=True)
class AlertFiring:
    """The span in which an alert fired; alerts on the collector's own series may name no node."""

    alert: str
    node: str
    begin: float
    end: float
    incident: str = ""
    """Identity of the incident, if the alert names one, with its class and the name of its cause on the node."""
    incident_class: str = ""
    device: str = ""

    def is_within(self, spans: Iterable[Span]) -> bool:
        """True if it fires in these spans only, which may overlap."""
        reached = -math.inf
        for begin, end in sorted(spans):
            if begin <= max(reached, self.begin):
                reached = max(reached, end)
        return self.end <= reached


def faults_in(lines: Iterable[str]) -> list[RecordedFault]:
    """Return the faults of a record: a line with an end replaces the one without."""
    found: dict[tuple[str, str], RecordedFault] = {}
    for line in lines:
        one = json.loads(line)
        end = _time(one["end"]) if one["end"] else None
        found[one["fault"], one["begin"]] = RecordedFault(
            one["fault"],
            one["node"],
            _time(one["begin"]),
            end,
            frozenset(one["alerts"]),
            one["within_seconds"],
            one["resolved_within_seconds"],
            one["incident"],
            str(one.get("gpu_index", one["device"] or "")),
        )
    return list(found.values())


def _time(text: str) -> float:
    return parse_timestamp(text) / SECOND_NS


def firings_in(series: Iterable[Mapping[str, Any]]) -> Iterator[AlertFiring]:
    """Return the spans of each series `ALERTS{alertstate="firing"}` of a range query."""
    for found_series in series:
        times = [float(instant) for instant, _ in found_series["values"]]
        begin, labels = times[0], found_series["metric"]
        for earlier, later in zip(times, [*times[1:], float("inf")], strict=True):
            if later - earlier > STEP_SECONDS * 1.5:
                yield AlertFiring(
                    labels["alertname"],
                    labels.get("node", ""),
                    begin,
                    earlier,
                    labels.get("incident", ""),
                    labels.get("class", ""),
                    labels.get("device", ""),
                )
                begin = later


def alert_mismatches(
    faults: list[RecordedFault], firings: list[AlertFiring], now: float
) -> list[str]:
    """Return the mismatches: alerts that are late or missing, and alerts of no fault."""

    def is_explained(firing: AlertFiring) -> bool:
        if firing.alert == REACH:
            return firing.is_within(
                (each.begin - REACH_EARLIER_SECONDS, each.end + REACH_LATER_SECONDS)
                for each in incidents
                if firing.incident in {"", each.incident}
            )
        return firing.is_within(
            fault.span_of(firing.alert, now) for fault in faults if fault.raises(firing)
        )

    incidents = [each for each in firings if each.alert == INCIDENT and is_explained(each)]
    found = []
    for fault in faults:
        if now < fault.begin + fault.within:
            continue
        for alert in sorted(fault.expected):
            begins = [
                firing.begin - fault.begin
                for firing in firings
                if firing.alert == alert and fault.is_shown_by(firing, now) and is_explained(firing)
            ]
            if not begins:
                found.append(f"{fault.name}: {alert} did not fire")
            elif min(begins) > fault.within:
                found.append(f"{fault.name}: {alert} fired after {min(begins):.0f} s")
    found += [
        f"{' '.join(filter(None, (firing.alert, firing.incident_class)))} ({firing.node or 'no node'}) fired for no fault,"
        f" from {dt.datetime.fromtimestamp(firing.begin, dt.UTC):%H:%M:%S} for {firing.end - firing.begin:.0f} s"
        for firing in firings
        if firing.alert != ALWAYS_FIRES and not is_explained(firing)
    ]
    return found


def alerts_since(prometheus: str, since: float, now: float) -> list[AlertFiring]:
    """Return all alerts of a Prometheus that have fired. Blocking."""
    query = urllib.parse.urlencode(
        {"query": 'ALERTS{alertstate="firing"}', "start": since, "end": now, "step": STEP_SECONDS}
    )
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{query}") as response:  # noqa: S310 - a loopback address
        return list(firings_in(json.load(response)["data"]["result"]))


def main(record: Path, prometheus: str) -> int:
    """Print each fault with its alerts, and the mismatches."""
    now = time.time()
    faults = faults_in(record.read_text(encoding="utf-8").splitlines())
    firings = alerts_since(prometheus, min(fault.begin for fault in faults) - 120, now)
    for fault in faults:
        click.echo(f"{fault.name} ({fault.node})")
        for firing in sorted(firings, key=lambda firing: firing.begin):
            if fault.is_shown_by(firing, now):
                after, lasts = firing.begin - fault.begin, firing.end - firing.begin
                click.echo(
                    f"  {firing.alert:32} after {after:4.0f} s (limit {fault.within:.0f} s), for {lasts:.0f} s"
                )
    found = alert_mismatches(faults, firings, now)
    click.echo("\n".join(found) if found else "exactly the alerts of the faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
