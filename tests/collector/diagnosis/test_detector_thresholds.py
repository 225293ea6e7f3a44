"""Thresholds of the detectors as settings."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from support.drawn_cluster import DrawnCluster, Row
from support.drawn_readings import SLOTS, healthy_feed, run

from railscope_collector import diagnosis
from railscope_collector.config import CollectorSettings
from railscope_collector.detector_thresholds import DetectorThresholds


def test_the_diagnosis_reads_every_threshold() -> None:
    names = {
        node.attr
        for path in Path(diagnosis.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    families = msgspec.structs.fields(DetectorThresholds)
    settings = {each.name for family in families for each in msgspec.structs.fields(family.type)}
    assert not settings - names


@pytest.mark.parametrize(
    ("thresholds", "expected"), [({}, ["job_slowdown"]), ({"slow_speed": 0.5}, [])]
)
def test_a_threshold_of_the_settings_changes_the_result(
    thresholds: dict[str, float], expected: list[str]
) -> None:
    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.84)

    settings = msgspec.convert(
        {"diagnosis": {"thresholds": {"jobs": thresholds}}}, CollectorSettings
    )
    feed = healthy_feed()
    feed.diagnosis.thresholds = settings.diagnosis.thresholds
    run(feed, slow_down, SLOTS)
    assert [each.class_name for each in feed.diagnosis.tracker.incidents] == expected
