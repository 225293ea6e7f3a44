"""Facts about GPUs on a day and around it: the complete input of metering, besides the administrators' files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS
from railscope_collector.evidence.claim_events import ReportedClaim, first_report_key
from railscope_collector.evidence.node_intervals import EvidenceInterval
from railscope_collector.metering.timeline import TimePiece, append_piece

CONTEXT_NS = HOUR_NS
"""Time around a day that belongs to its input: a gap up to this length is billed."""


class DatedValue(NamedTuple):
    """A value of a GPU from a time on."""

    since_ns: int
    value: Any


DatedValues: TypeAlias = dict[str, list[DatedValue]]
"""Dated values by GPU, in order of time."""


class DayFacts(NamedTuple):
    """All facts about some GPUs on a day and around it."""

    nodes: DatedValues
    contested: DatedValues
    """Nodes that list a GPU of another node, each until the GPU moves; empty for none."""
    models: DatedValues
    """Rail and SKU."""
    layouts: DatedValues
    """MIG instances, each as [low, high) of compute and of memory."""
    quarters: dict[str, list[EvidenceInterval]]
    """By node."""
    claims: dict[str, list[ReportedClaim]]
    """All reports of claims that may be in force, by GPU."""
    ends: dict[tuple[str, str, str], int]
    """Lowest reported end, by node, GPU and claim."""
    boots: dict[str, dict[str, int]]
    """First report by node and boot."""


def spans_of(values: Sequence[DatedValue]) -> list[TimePiece[Any]]:
    """Return dated values with the time in which each applies."""
    pieces: list[TimePiece[Any]] = []
    ends_ns = [*(each.since_ns for each in values), FOREVER_NS][1:]
    for each, end_ns in zip(values, ends_ns, strict=True):
        append_piece(pieces, TimePiece(each.since_ns, end_ns, each.value))
    return pieces


def spans_on(values: Sequence[DatedValue], day: int) -> list[TimePiece[Any]]:
    """Return the spans of a day and of the hour after it."""
    return [
        span
        for span in spans_of(values)
        if span.start_ns < (day + 1) * DAY_NS + CONTEXT_NS and day * DAY_NS < span.end_ns
    ]


def group_reports(reports: Iterable[ReportedClaim]) -> dict[tuple[str, str], list[ReportedClaim]]:
    """Return the reports of each claim by node and id, with the one that counts first."""
    found: dict[tuple[str, str], list[ReportedClaim]] = {}
    for report in sorted(reports, key=first_report_key):
        found.setdefault((report.node, report.id), []).append(report)
    return found
