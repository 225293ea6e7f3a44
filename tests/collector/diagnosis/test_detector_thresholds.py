"""Thresholds of the detectors as settings."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from support.drawn_cluster import DrawnCluster, Row
from support.drawn_readings import SLOTS, classes_of, drawn_feed, run

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
    ("family", "threshold", "expected"),
    [
        ("jobs", {}, {("dataloader_stall", "job")}),
        ("jobs", {"max_small_input": 0.8}, set()),
        ("steps", {"min_progress": 0.9}, set()),
    ],
)
def test_a_threshold_of_the_settings_changes_the_result(
    family: str, threshold: dict[str, float], expected: set[tuple[str, str]]
) -> None:
    def gaps(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.83
            cluster.slow_job(row, cluster.jobs[0], 0.83)

    settings = msgspec.convert(
        {"diagnosis": {"thresholds": {family: threshold}}}, CollectorSettings
    )
    feed = drawn_feed(slots=SLOTS)
    feed.diagnosis.thresholds = settings.diagnosis.thresholds
    assert classes_of(run(feed, gaps, SLOTS)) == expected
