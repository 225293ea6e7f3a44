"""The faults of the demo: their schedule, their record, and what compares them with alerts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import yaml
from support.alert_rules import RULES
from support.demo_alerts import (
    AlertFiring,
    RecordedFault,
    alert_mismatches,
    faults_in,
    firings_in,
)

from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_simulator.demo.faults import (
    FAULTS,
    ROUND_SECONDS,
    DemoFault,
    FaultRecord,
    FaultTarget,
    changes,
    plan_faults,
)
from railscope_simulator.live import LiveNode
from railscope_simulator.node_hardware import build_node_hardware

EACH_FAULT = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
NODE = LiveNode("gpu-node-1", 0, "slurm", 0, 10**18, 10**12, round_seconds=ROUND_SECONDS)
QUIET_SECONDS = 60
SCRAPE_SECONDS = 15


def in_seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[duration[-1]]


@EACH_FAULT
def test_a_fault_lasts_until_its_alerts_fire_and_they_resolve_within_its_round(fault: DemoFault):
    assert fault.within_seconds <= fault.length_seconds
    end = fault.begin_seconds + fault.length_seconds
    assert end + fault.resolved_within_seconds <= ROUND_SECONDS - QUIET_SECONDS


@EACH_FAULT
def test_the_alerts_of_a_fault_can_fire_within_its_time(fault: DemoFault):
    """A rule needs a scrape, an evaluation of its group, and its `for`, which begins with the evaluation."""
    seconds: dict[str, float] = {}
    for path in RULES:
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]:
            for rule in (rule for rule in group["rules"] if "alert" in rule):
                needed = in_seconds(group["interval"]) + in_seconds(rule["for"])
                earlier = seconds.get(rule["alert"], needed)
                seconds[rule["alert"]] = min(earlier, needed)
    for alert in fault.alerts:
        assert seconds[alert] + SCRAPE_SECONDS <= fault.within_seconds
    assert fault.incident in {"", *CLASSES}


def test_faults_begin_one_after_the_other_and_come_again():
    seen = list(islice(changes(), 4 * len(FAULTS)))
    assert [change.seconds for change in seen] == sorted(change.seconds for change in seen)
    begins = [change for change in seen if change.begins]
    assert len({change.seconds for change in begins}) == len(begins) == 2 * len(FAULTS)
    assert {change.round for change in seen} == {0, 1}


def test_faults_of_a_node_strike_it_by_turns():
    """Two at once on one node could hide each other's alerts."""
    for one in FAULTS:
        for other in FAULTS:
            if one.node == other.node and one.begin_seconds < other.begin_seconds:
                assert one.begin_seconds + one.length_seconds <= other.begin_seconds


def test_the_record_has_a_line_for_each_begin_and_each_end(tmp_path: Path):
    path = tmp_path / "faults.jsonl"
    path.write_text("of a demo before\n")
    record = FaultRecord(path, 10**18)
    seen = list(islice(changes(), 2 * len(FAULTS)))
    nodes = {fault.node: NODE for fault in FAULTS}
    for change in seen:
        record.add(change, FaultTarget.from_change(nodes[change.fault.node], change))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == len(seen)
    assert [line["end"] is None for line in lines] == [change.begins for change in seen]
    found = faults_in(path.read_text().splitlines())
    assert {fault.name for fault in found} == {fault.name for fault in FAULTS}
    assert all(fault.end is not None and fault.end > fault.begin for fault in found)


def test_the_end_of_the_demo_ends_its_faults(tmp_path: Path):
    record = FaultRecord(tmp_path / "faults.jsonl", 10**18)
    change = next(changes())
    record.add(change, FaultTarget.from_change(NODE, change))
    record.close(change.seconds + 5)
    record.close(change.seconds + 9)
    begun, ended = map(json.loads, (tmp_path / "faults.jsonl").read_text().splitlines())
    assert (begun["end"], ended["end"]) == (None, "2001-09-09T01:47:25.000Z")


@EACH_FAULT
def test_a_fault_names_its_target(fault: DemoFault):
    change = next(change for change in changes() if change.fault is fault)
    target = FaultTarget.from_change(NODE, change)
    parts = build_node_hardware(NODE.spec)
    known = {None, *(gpu.uuid for gpu in parts.gpus), *(port.interface for port in parts.ports)}
    assert target.device in known
    assert "{" not in target.text
    assert all(str(name) in target.text for name in target.names.values())


def test_each_round_has_fresh_faults():
    devices = {
        FaultTarget.from_change(NODE, change).device
        for change in islice(changes(), 20 * 2 * len(FAULTS))
        if change.fault.name == "gpu_memory_error"
    }
    assert len(devices) > 3
    assert plan_faults("gpu-node-2")[0].scenario == "unclaimed"


# The comparison ---------------------------------------------------------------------------------

FAULT = RecordedFault("f", "n1", 100.0, 200.0, frozenset({"A"}), 60.0, 30.0)
DIAGNOSED = replace(FAULT, alerts=frozenset[str](), incident="link_down", device="eth3")
PAGE = AlertFiring("RailscopeIncident", "n1", 150, 900, "7", "link_down", "eth3")
REACH = AlertFiring("RailscopeIncidentReach", "n1", 140, 1200, "7")


@pytest.mark.parametrize(
    ("firings", "now", "wrong"),
    [
        ([AlertFiring("A", "n1", 150, 220)], 300, []),
        ([], 150, []),
        ([], 300, ["f: A did not fire"]),
        ([AlertFiring("A", "n1", 170, 220)], 300, ["f: A fired after 70 s"]),
        (
            [AlertFiring("A", "n1", 150, 240)],
            300,
            ["f: A did not fire", "A (n1) fired for no fault"],
        ),
        (
            [AlertFiring("A", "n1", 90, 220)],
            300,
            ["f: A did not fire", "A (n1) fired for no fault"],
        ),
        (
            [AlertFiring("A", "n1", 150, 220), AlertFiring("A", "n2", 150, 220)],
            300,
            ["A (n2) fired for"],
        ),
        (
            [AlertFiring("A", "n1", 150, 220), AlertFiring("B", "", 150, 151)],
            300,
            ["B (no node) fired for"],
        ),
        (
            [AlertFiring("A", "", 150, 220), AlertFiring("RailscopeDeadMansSwitch", "", 0, 300)],
            300,
            [],
        ),
    ],
)
def test_what_does_not_fit_is_found(firings: list[AlertFiring], now: float, wrong: list[str]):
    found = alert_mismatches([FAULT], firings, now)
    assert len(found) == len(wrong)
    for problem, terms in zip(found, wrong, strict=True):
        assert problem.startswith(terms)


@pytest.mark.parametrize(
    ("firings", "wrong"),
    [
        ([PAGE, REACH, replace(REACH, node="n2", incident="")], []),
        ([], ["f: RailscopeIncident did not fire"]),
        (
            [PAGE, replace(PAGE, incident_class="nic_lost")],
            ["RailscopeIncident nic_lost (n1) fired"],
        ),
        ([PAGE, replace(PAGE, device="eth4")], ["RailscopeIncident link_down (n1) fired for"]),
        ([PAGE, replace(PAGE, node="n2")], ["RailscopeIncident link_down (n2) fired for"]),
        ([PAGE, replace(REACH, incident="8")], ["RailscopeIncidentReach (n1) fired for"]),
        ([PAGE, replace(REACH, begin=110)], ["RailscopeIncidentReach (n1) fired for"]),
        ([PAGE, replace(REACH, incident="", end=1300)], ["RailscopeIncidentReach (n1) fired"]),
        (
            [replace(PAGE, end=1000), REACH],
            ["f: RailscopeIncident did", "RailscopeIncident link", "RailscopeIncidentReach (n1)"],
        ),
    ],
)
def test_an_alert_on_an_incident_belongs_to_the_fault_of_its_class_and_cause(
    firings: list[AlertFiring], wrong: list[str]
):
    found = alert_mismatches([DIAGNOSED], firings, 1300)
    assert len(found) == len(wrong)
    for problem, terms in zip(found, wrong, strict=True):
        assert problem.startswith(terms)


def test_an_alert_on_an_incident_of_a_fault_without_one_is_found():
    assert alert_mismatches([FAULT], [AlertFiring("A", "n1", 150, 220), PAGE], 1000)


def test_the_same_incident_in_two_rounds_is_one_alert():
    again = replace(DIAGNOSED, begin=900.0, end=1000.0)
    assert not alert_mismatches([DIAGNOSED, again], [replace(PAGE, end=1700)], 2000)
    later = replace(again, begin=1000.0)
    assert alert_mismatches([DIAGNOSED, later], [replace(PAGE, end=1700)], 2000)


def test_a_series_with_a_gap_is_two_alerts():
    values = [[0, "1"], [5, "1"], [30, "1"]]
    series = [{"metric": {"alertname": "A", "node": "n"}, "values": values}]
    assert list(firings_in(series)) == [AlertFiring("A", "n", 0, 5), AlertFiring("A", "n", 30, 30)]
