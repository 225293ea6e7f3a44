"""The JSON Schema of incidents: what it states about the fields that other programs read."""

from __future__ import annotations

from typing import Any

import pytest

from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incident_report import incident_schema


@pytest.fixture(scope="module")
def incident() -> dict[str, Any]:
    definitions: Any = incident_schema()["$defs"]
    found: dict[str, Any] = definitions["IncidentDocument"]
    return found


def test_confidence_is_from_0_to_1(incident: dict[str, Any]) -> None:
    assert incident["properties"]["confidence"] == {"type": "number", "minimum": 0, "maximum": 1}


def test_times_have_a_format(incident: dict[str, Any]) -> None:
    time = {"type": "string", "format": "date-time"}
    properties = incident["properties"]
    assert properties["onset"] == properties["detected"] == time
    assert properties["ended"] == {"anyOf": [time, {"type": "null"}]}


def test_the_speed_of_a_job_is_a_median() -> None:
    definitions: Any = incident_schema()["$defs"]
    assert "median of the last five minutes" in definitions["JobDocument"]["description"]


def test_class_and_runbook_are_required(incident: dict[str, Any]) -> None:
    assert {"class", "runbook"} <= set(incident["required"])
    assert incident["properties"]["class"]["enum"] == sorted(CLASSES)
