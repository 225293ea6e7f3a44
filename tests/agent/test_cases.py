"""Every directory of tests/captures: the agent's output for the capture is as expected."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from captures.make import simulated
from support.cases import (
    CASES,
    ExpectedSeries,
    check_files,
    expected_metrics,
    names,
    page,
    read_case,
    third_of,
    without_agent_metrics,
)
from support.metric_samples import Sample, samples

EACH_CASE = pytest.mark.parametrize("case", names())
REASON_ACTIVE = "railscope_gpu_health_reason_active"


@cache
def once(case: str) -> str:
    return page(CASES / case)


@cache
def expected(case: str) -> dict[Sample, float]:
    return samples(expected_metrics(CASES / case))


def values(case: str, fact: ExpectedSeries) -> list[float]:
    """Return the expected values of the series that a fact is about."""
    wanted = set(fact.labels.items())
    return [v for (name, has), v in expected(case).items() if name == fact.metric and has >= wanted]


def holds(case: str, fact: ExpectedSeries) -> bool:
    found = values(case, fact)
    return len(found) == fact.count if fact.value is None else set(found) == {fact.value}


@EACH_CASE
def test_the_directory_is_complete_and_valid(case: str) -> None:
    check_files(CASES / case)


@EACH_CASE
def test_the_output_is_as_expected(case: str) -> None:
    assert without_agent_metrics(once(case)) == expected_metrics(CASES / case), "see `make cases`"


@EACH_CASE
def test_the_facts_of_the_case_hold(case: str) -> None:
    facts = read_case(CASES / case).facts
    assert [(fact, values(case, fact)) for fact in facts if not holds(case, fact)] == []


@EACH_CASE
def test_the_active_health_reasons_are_those_of_the_case(case: str) -> None:
    active: dict[str, list[str]] = {}
    for (metric, has), value in expected(case).items():
        if metric == REASON_ACTIVE and value:
            active.setdefault(dict(has)["gpu"], []).append(dict(has)["reason"])
    wanted = read_case(CASES / case).health_reasons
    assert {gpu: sorted(reasons) for gpu, reasons in active.items()} == {
        gpu: sorted(reasons) for gpu, reasons in wanted.items()
    }


@pytest.mark.parametrize("case", third_of(names()))
def test_the_capture_of_a_scenario_is_up_to_date(case: str, tmp_path: Path) -> None:
    simulation = read_case(CASES / case).simulation
    if simulation is None:
        return  # a recorded capture never changes
    simulated(case, simulation).write(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (CASES / case / path.name).read_text(), "run `make cases`"


@EACH_CASE
def test_promtool_accepts_the_output(case: str) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(
        ["promtool", "check", "metrics"],
        input=once(case),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout + outcome.stderr) == (0, "")
