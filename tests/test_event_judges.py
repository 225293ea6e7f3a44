"""Judges of events: each class of events names the alert, incident class or health rule that states what an operator does about it."""

from __future__ import annotations

from pathlib import Path

import yaml
from support.each import of_each

from railscope.catalog import EVENTS
from railscope_agent.health import RULES
from railscope_agent.health.fact_collector import NIC_RULES
from railscope_collector.diagnosis.incident_classes import CLASSES

ALERTS = {
    rule["alert"]
    for file in (Path(__file__).parent.parent / "alerts/rules").glob("*.yml")
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


@of_each(EVENTS)
def test_an_event_is_judged(name: str) -> None:
    event = EVENTS[name]
    judges = ALERTS | CLASSES.keys() | {rule.reason for rule in (*RULES, *NIC_RULES)}
    assert event.audited or event.judged_by in judges, (
        f"event {name}: judged_by is {event.judged_by!r}: expected the name of an alert (alerts/rules), of a class of "
        "incidents (railscope diagnose), or of a rule of health (docs/health.md); fix: name what judges the facts of "
        "the event, write it, or leave out the event"
    )
