"""Incidents of a drawn cluster whose readings are changed from an onset on."""

from __future__ import annotations

from collections.abc import Callable

from bench.drawn_cluster import DrawnCluster, DrawnFeed, Row
from collector.diagnosis.incidents import Incident

SLOTS, ONSET = 84, 50
NODES = 6


def incidents_of(
    change: Callable[[DrawnCluster, Row, int], None],
    slots: int = SLOTS,
    pods: int = 1,
    job_nodes: int = NODES,
) -> list[Incident]:
    """Return the incidents of a cluster whose readings are changed from the onset on."""
    cluster = DrawnCluster(9, pods, NODES, benign=False)
    del cluster.jobs[0].nodes[job_nodes:]
    feed = DrawnFeed(cluster, slots)
    for slot in range(slots):
        row = cluster.draw()
        change(cluster, row, slot - ONSET)
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot)
    return [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]


def classes_of(found: list[Incident]) -> set[tuple[str, str]]:
    return {(each.incident_class.name, each.cause.kind) for each in found}
