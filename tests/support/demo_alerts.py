"""Compares the alerts of a Prometheus with the faults that a demo has recorded.

By hand, beside `make demo` and a Prometheus with all rules:

    .venv/bin/python -m tests.support.demo_alerts .demo/faults.jsonl http://127.0.0.1:19090
"""

from __future__ import annotations

import datetime as dt
import json
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


@dataclass(frozen=True)
class RecordedFault:
    """A fault of the record; times are in seconds since the epoch, without `end` it continues."""

    name: str
    node: str
    begin: float
    end: float | None
    alerts: frozenset[str]
    within: float
    resolved_within: float

    def explains(self, firing: AlertFiring, now: float) -> bool:
        """True if an alert belongs to this fault, and fires in its time."""
        end = (now if self.end is None else self.end) + self.resolved_within
        return (
            firing.alert in self.alerts
            and firing.node in {"", self.node}
            and self.begin <= firing.begin
            and firing.end <= end
        )


@dataclass(frozen=True)
class AlertFiring:
    """The span in which an alert fired; alerts on the collector's own series may name no node."""

    alert: str
    node: str
    begin: float
    end: float


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
        )
    return list(found.values())


def _time(text: str) -> float:
    return parse_timestamp(text) / SECOND_NS


def firings_in(series: Iterable[Mapping[str, Any]]) -> Iterator[AlertFiring]:
    """Return the spans of each series `ALERTS{alertstate="firing"}` of a range query."""
    for found_series in series:
        times = [float(instant) for instant, _ in found_series["values"]]
        begin = times[0]
        for earlier, later in zip(times, [*times[1:], float("inf")], strict=True):
            if later - earlier > STEP_SECONDS * 1.5:
                yield AlertFiring(
                    found_series["metric"]["alertname"],
                    found_series["metric"].get("node", ""),
                    begin,
                    earlier,
                )
                begin = later


def alert_mismatches(
    faults: list[RecordedFault], firings: list[AlertFiring], now: float
) -> list[str]:
    """Return the mismatches: alerts that are late or missing, and alerts of no fault."""
    found = []
    for fault in faults:
        if now < fault.begin + fault.within:
            continue
        for alert in sorted(fault.alerts):
            begins = [
                firing.begin - fault.begin
                for firing in firings
                if firing.alert == alert and fault.explains(firing, now)
            ]
            if not begins:
                found.append(f"{fault.name}: {alert} did not fire")
            elif min(begins) > fault.within:
                found.append(f"{fault.name}: {alert} fired after {min(begins):.0f} s")
    found += [
        f"{firing.alert} ({firing.node or 'no node'}) fired for no fault,"
        f" from {dt.datetime.fromtimestamp(firing.begin, dt.UTC):%H:%M:%S} for {firing.end - firing.begin:.0f} s"
        for firing in firings
        if firing.alert != ALWAYS_FIRES and not any(fault.explains(firing, now) for fault in faults)
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
            if fault.explains(firing, now):
                after, lasts = firing.begin - fault.begin, firing.end - firing.begin
                click.echo(
                    f"  {firing.alert:32} after {after:4.0f} s (limit {fault.within:.0f} s), for {lasts:.0f} s"
                )
    found = alert_mismatches(faults, firings, now)
    click.echo("\n".join(found) if found else "exactly the alerts of the faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
