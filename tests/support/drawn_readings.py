"""Incidents of a drawn cluster whose readings are changed from an onset on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

from support.drawn_cluster import DrawnCluster, DrawnFeed, Row

from railscope_collector.diagnosis.incidents import Incident

SLOTS, ONSET = 84, 50
MAX_SLOTS = 160
"""Slots that a feed has room for, if a test needs no more."""
NODES = 6


Change = Callable[[DrawnCluster, Row, int], None]
"""Changes the readings of a slot; the integer is the number of slots since the onset."""


def drawn_feed(
    pods: int = 1, job_nodes: int = NODES, nodes: int = NODES, slots: int = MAX_SLOTS
) -> DrawnFeed:
    """Return a cluster without harmless events, whose first job has at most some nodes."""
    cluster = DrawnCluster(9, pods, nodes, benign=False)
    del cluster.jobs[0].nodes[min(job_nodes, cluster.nodes) :]
    cluster.jobs = [job for job in cluster.jobs if job.nodes]
    return DrawnFeed(cluster, slots)


@cache
def _healthy(pods: int, job_nodes: int, onset: int) -> DrawnFeed:
    feed = drawn_feed(pods, job_nodes)
    run(feed, lambda _cluster, _row, _since: None, onset)
    return feed


def healthy_feed(pods: int = 1, job_nodes: int = NODES, onset: int = ONSET) -> DrawnFeed:
    """Return a cluster without a change until the onset: half of the time of most tests, which share it."""
    return copy.deepcopy(_healthy(pods, job_nodes, onset))


def run(feed: DrawnFeed, change: Change, slots: int) -> list[Incident]:
    """Evaluate the next slots, whose readings are changed from the onset on; return the incidents."""
    for slot in range(feed.cluster.slot, slots):
        row = feed.cluster.draw()
        change(feed.cluster, row, slot - ONSET)
        feed.evaluate(slot, row)
    return [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]


def incidents_of(
    change: Change,
    slots: int = SLOTS,
    pods: int = 1,
    job_nodes: int = NODES,
    *,
    changes_past: bool = False,
) -> list[Incident]:
    """Return the incidents of a cluster whose readings are changed, from the onset on unless its past is, too."""
    feed = (drawn_feed if changes_past else healthy_feed)(pods, job_nodes)
    return run(feed, change, slots)


def classes_of(found: list[Incident]) -> set[tuple[str, str]]:
    return {(each.incident_class.name, each.cause.kind) for each in found}
