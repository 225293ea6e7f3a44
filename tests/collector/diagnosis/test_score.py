"""Score of the diagnosis: scenarios, comparison of incidents with the truth, and the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from railscope_simulator.cluster.scenario import FAULT_KINDS, scenario_problems
from tests.collector.diagnosis.score.__main__ import score
from tests.collector.diagnosis.score.score_scenarios import (
    CASCADE,
    CLASSES,
    COMPOUND,
    HEALTHY,
    draw_scenario,
)
from tests.collector.diagnosis.score.score_table import table
from tests.collector.diagnosis.score.scoring import RunOutcome, compare

NIC = {"kind": "nic", "node": "n1", "interface": "ens1", "device": "mlx5_0", "rail": 0}
OTHER_NIC = {**NIC, "interface": "ens2", "device": "mlx5_3", "rail": 1}
NODE = {"kind": "node", "node": "n1"}
LEAF = {"kind": "leaf", "pod": 0, "rail": 3, "switch": "leaf-4"}


def truth(*cause: dict[str, Any], name: str = "slow_receiver", **keys: Any) -> dict[str, Any]:
    onset = "2025-10-09T09:00:00Z"
    return {
        "class": name,
        "strength": 0.5,
        "accepted": [],
        "cause": [*cause],
        "onset": onset,
        **keys,
    }


def incident(cause: dict[str, Any], name: str = "slow_receiver", **keys: Any) -> dict[str, Any]:
    """An incident as `railscope diagnose` reports it."""
    times = {"onset": "2025-10-09T09:00:05Z", "detected": "2025-10-09T09:00:40Z"}
    common = {"severity": "warning", "confidence": 0.8, "explained_by": None}
    return {"class": name, "cause": cause, **times, **common, **keys}


def outcome_of(truths: list[dict[str, Any]], incidents: list[dict[str, Any]]) -> RunOutcome:
    outcome = RunOutcome("run", 1.0)
    compare(truths, incidents, 5.0, outcome)
    return outcome


@pytest.mark.parametrize("name", CLASSES)
def test_scenarios_of_a_class_have_its_fault_and_are_valid(name: str) -> None:
    sizes, strengths = set(), set()
    for seed in range(4):
        scenario = draw_scenario(name, seed)
        assert scenario == draw_scenario(name, seed)
        assert not list(scenario_problems(scenario))
        sizes.add((scenario.step_seconds, scenario.topology.nodes))
        faults = [fault for fault in scenario.faults if FAULT_KINDS[fault.fault].incident_class]
        strengths |= {fault.strength for fault in faults}
        assert len(faults) == {HEALTHY: 0, COMPOUND: 2, CASCADE: 2}.get(name, 1)
        for fault in faults:
            assert name in {COMPOUND, CASCADE, FAULT_KINDS[fault.fault].incident_class}
            assert 240 <= fault.begin_seconds < 430
    assert len(sizes) > 1
    assert name == HEALTHY or len(strengths) > 3


def test_an_incident_with_class_cause_and_time_of_the_fault_is_correct():
    outcome = outcome_of([truth(NIC)], [incident(NIC)])
    assert [(fault.delay_seconds, fault.ranked_first) for fault in outcome.faults] == [(40, True)]
    assert not outcome.false_classes


@pytest.mark.parametrize(
    "wrong",
    [
        incident(OTHER_NIC),
        incident({**NIC, "node": "n2"}),
        incident(NODE),
        incident(NIC, "pfc_storm"),
        incident(NIC, onset="2025-10-09T08:59:40Z"),
        incident(NIC, onset="2025-10-09T09:02:00Z"),
    ],
)
def test_another_class_cause_or_time_is_a_miss_and_a_false_positive(wrong: dict[str, Any]) -> None:
    outcome = outcome_of([truth(NIC)], [wrong])
    assert outcome.faults[0].delay_seconds is None
    assert outcome.false_classes == [wrong["class"]]


@pytest.mark.parametrize(
    ("found", "part"),
    [
        ({"kind": "leaf", "switch": "leaf-4", "pod": None, "rail": 3}, LEAF),
        ({"kind": "leaf", "switch": "", "rail": 3}, LEAF),
        ({**LEAF, "switch": "leaf-9", "or": [LEAF]}, LEAF),
        (
            {"kind": "storage", "server": "filer-1"},
            {"kind": "storage", "server": "filer-1:/export"},
        ),
        ({"kind": "job", "workload": "41"}, {"kind": "job", "workload": "41", "job": "alpha"}),
        ({"kind": "gpu", "node": "n1", "index": 0}, {"kind": "gpu", "node": "n1", "index": 0}),
        ({"kind": "rack", "rack": "r1"}, NODE),
    ],
)
def test_a_cause_is_named_by_what_hosts_report(found: dict[str, Any], part: dict[str, Any]) -> None:
    outcome = outcome_of([truth(part, accepted=["rack"])], [incident(found)])
    assert outcome.faults[0].delay_seconds is not None


def test_the_table_has_precision_recall_delays_and_the_healthy_rate():
    found = outcome_of([truth(NIC)], [incident(NIC), incident(NODE, "host_late")])
    missed = outcome_of([truth(NIC)], [])
    healthy = outcome_of([], [incident(NIC, "pfc_storm"), incident(OTHER_NIC, "pfc_storm")])
    for outcome, period in ((found, 10), (missed, 2)):
        outcome.faults[0].forms = (f"period {period} s", "exchange ring")
    failed = RunOutcome("failed", 1.0, problem="exit status 1")
    lines = list(table([found, missed, healthy, failed]))
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["slow_receiver"][1:3] == ["2", "1.000"]
    assert rows["slow_receiver"][4] == "0.500"
    assert rows["host_late"][2] == "0.000"
    assert rows["all"][2] == "0.333"
    recalls = [line.partition(" (")[0] for line in lines if line.startswith("recall")]
    assert recalls == [
        "recall, exchange ring: 0.500",
        "recall, period 2 s: 0.000",
        "recall, period 10 s: 1.000",
    ]
    assert lines[-1] == "failed: 1 of 4 runs; their faults count as missed"
    assert lines[-2].startswith("healthy: 1 runs, 1.0 node-hours, 1 false positives: 1000.0 (")


@pytest.mark.thorough
def test_a_program_is_scored_with_its_incidents(tmp_path: Path):
    program = tmp_path / "program.py"
    found = incident(NIC, "pfc_storm")
    program.write_text(
        "import sys, pathlib\n"
        "assert list(pathlib.Path(sys.argv[2]).glob('*/capture.toml')), sys.argv\n"
        f"print({json.dumps(found)!r})\n"
    )
    command = f"{sys.executable} {program}"
    options = ["--seeds", "14", "--class", HEALTHY, "--command", command]
    done = CliRunner().invoke(score, options)
    assert done.exit_code == 0, done.output
    assert "healthy/14: false pfc_storm" in done.stderr
    assert "pfc_storm" in done.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--seeds", "x"], "invalid --seeds: 'x': expected A-B such as 0-9"),
        (["--seeds", "3-1"], "invalid --seeds: '3-1': expected A-B such as 0-9"),
        (["--class", "gremlin"], "'gremlin' is not one of"),
    ],
)
def test_invalid_options_are_rejected(options: list[str], problem: str) -> None:
    done = CliRunner().invoke(score, options)
    assert done.exit_code == 2
    assert problem in done.output
