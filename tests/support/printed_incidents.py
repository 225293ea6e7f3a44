"""Incidents of a drawn cluster as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Set as AbstractSet

from support.drawn_cluster import START_NS, DrawnFeed
from support.scenario_names import NODES, Names

from railscope_collector.diagnosis.findings import SLOT_NS
from railscope_collector.diagnosis.incidents import Incident


def printed_incidents(
    feed: DrawnFeed, names: Names, shown: AbstractSet[str], onset: int
) -> list[str]:
    """Return the lines of the incidents whose cause is in a story."""
    tracked = feed.diagnosis.tracker.incidents
    first, last = names.first, names.first + NODES * names.pods
    own = [each for each in tracked if first <= _node_of(each) < last]
    found = sorted([*_lines(feed, names, each, shown, onset)] for each in own)
    return [line for lines in found for line in lines]


def _lines(
    feed: DrawnFeed, names: Names, each: Incident, shown: AbstractSet[str], onset: int
) -> Iterator[str]:
    words = [each.class_name, _place(names, each)]
    words += [f"x{len(each.parts)}"] * (len(each.parts) > 1)
    words += [str(each.severity)] * (each.severity != each.incident_class.severity)
    words += [f"@{(each.onset_ns - START_NS) // SLOT_NS - onset}"] * ("onset" in shown)
    words += [f"jobs={len(each.reach.jobs)}"] * (len(each.reach.jobs) > 1)
    if feed.diagnosis.groups and each.alternatives:
        leaves = feed.diagnosis.groups.leaf_names
        words.append("or " + " ".join(leaves[at] for at in each.alternatives))
    words += [f"at {each.queue.place}"] if each.queue else []
    for other in feed.diagnosis.tracker.incidents:
        if other.incident_id == each.explained_by:
            words.append(f"< {other.class_name} {_place(names, other)}")
    words += ["recovering"] * bool(each.recovering_slots) + ["ended"] * bool(each.ended_ns)
    yield names.local(" ".join(words))
    yield from (names.local(f"  {line}") for line in _more(each, shown))


def _more(each: Incident, shown: AbstractSet[str]) -> Iterator[str]:
    """Yield what a story shows beside an incident."""
    if "cost" in shown:
        for key, speed in sorted(each.job_speeds.items()):
            yield f"job {key.workload} has {speed:.1f} of its speed"
        for tenant, seconds in sorted(each.lost_gpu_seconds.items()):
            yield f"{tenant} lost {_rounded(seconds)} GPU-seconds"
        yield from (f"job {key.workload} ended" for key in sorted(each.ended_jobs))
    if "reach" in shown:
        touched, held = (
            " ".join(key.workload for key in sorted(jobs)) or "none"
            for jobs in (each.reach.jobs, each.holders)
        )
        yield f"touches {touched}, held by {held}, scheduler {each.scheduler}"
    if "evidence" in shown:
        for row in each.evidence:
            value = f" {row.value:.0f}" if row.comparison.startswith("collectives") else ""
            yield f"{row.signal} {row.device} ({row.comparison}){value}"
    if "detail" in shown and each.finding.detail:
        yield each.finding.detail


def _rounded(seconds: float) -> float:
    """Return seconds with one digit: readings have noise."""
    return float(f"{seconds:.1g}")


def _node_of(incident: Incident) -> int:
    """Return a node of the cause."""
    cause = incident.cause
    if cause.kind in {"nic", "gpu"}:
        return cause.position // 8
    if cause.kind == "node" or "filer-" in cause.name:
        return int(cause.name.rpartition("-")[2])
    if cause.kind == "leaf":
        return int(cause.name.split("-")[1]) * NODES
    if cause.job is not None:
        return int(cause.job.workload.partition("/")[0])
    return incident.parts[0] // 8 if incident.parts else 0


def _place(names: Names, incident: Incident) -> str:
    """Return the kind and the place of the cause."""
    cause = incident.cause
    if cause.kind in {"nic", "gpu"}:
        node, index = divmod(cause.position, 8)
        index = (index - names.shift) % 8 if cause.kind == "nic" else index
        return f"{cause.kind} {node - names.first}:{index}"
    if cause.job is not None:
        return f"job {cause.job.workload}"
    return cause.name.removesuffix("-") if cause.kind in {"node", "leaf"} else cause.kind
