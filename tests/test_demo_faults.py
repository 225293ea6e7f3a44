"""The faults of the demo: their schedule and their targets."""

from __future__ import annotations

from itertools import islice

import pytest
import yaml
from support.alert_rules import RULES

from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_simulator.demo.faults import (
    FAULTS,
    ROUND_SECONDS,
    DemoFault,
    changes,
    describe_target,
)
from railscope_simulator.live import LiveNode
from railscope_simulator.node_hardware import build_node_hardware

EACH_FAULT = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
NODE = LiveNode("gpu-node-1", 0, "slurm", 0, 10**18, 10**12, round_seconds=ROUND_SECONDS)
QUIET_SECONDS = 120
SCRAPE_SECONDS = 15


def in_seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[duration[-1]]


@EACH_FAULT
def test_a_fault_lasts_until_its_alerts_fire_and_ends_well_before_its_round(fault: DemoFault):
    assert fault.within_seconds <= fault.length_seconds
    assert fault.begin_seconds + fault.length_seconds <= ROUND_SECONDS - QUIET_SECONDS


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


@EACH_FAULT
def test_a_fault_names_its_target(fault: DemoFault):
    change = next(change for change in changes() if change.fault is fault)
    text = describe_target(NODE, change)
    assert "{" not in text
    parts = build_node_hardware(NODE.spec)
    names = {
        "{gpu}": [gpu.uuid for gpu in parts.gpus],
        "{nic}": [port.interface for port in parts.ports],
    }
    for field, known in names.items():
        if field in fault.text:
            assert any(name in text for name in known)
