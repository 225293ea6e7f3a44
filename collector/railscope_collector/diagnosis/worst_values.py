"""Worst values of the evidence of an incident: each is the value furthest beyond its limit, with its time.

Evidence lists the first of many devices, which may be others at the next evaluation: the values are kept beside it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from railscope_collector.diagnosis.evidence_words import is_measure
from railscope_collector.diagnosis.findings import CHANGE, TIMES_PAST, Evidence, FindingEvidence
from railscope_collector.workloads.job_roster import JobKey

MAX_WORST_VALUES = 64
"""Four times the evidence of an incident: those that were listed last remain."""
_BAD_WHEN_LOW = frozenset(
    {
        "activity",
        "clock",
        "link_speed",
        "marks",
        "notifications_sent",
        "pcie_generation",
        "pcie_speed",
        "pcie_width",
        "queue_marked_share",
        "queue_marks",
        "send",
        "utilization",
    }
)
"""Signals of faults that lower them. A straggler's change of the same signal is high: its peers wait for it."""


class EvidenceKey(NamedTuple):
    """Identity of evidence over evaluations."""

    signal: str
    device: str
    job: JobKey | None

    @staticmethod
    def of(evidence: FindingEvidence) -> EvidenceKey:
        """Return the identity of evidence."""
        return EvidenceKey(evidence.signal, evidence.device, evidence.job)


class WorstValue(NamedTuple):
    """Value, and end of the evaluation that read it."""

    value: float
    evaluated_ns: int


def add_worst(values: dict[EvidenceKey, WorstValue], evidence: Evidence, evaluated_ns: int) -> None:
    """Add the evidence of an evaluation; of two equal values, the earlier one remains."""
    for each in evidence:
        key = EvidenceKey.of(each)
        before = values.pop(key, None)
        excess = _excess(each)
        if excess > 0 and (before is None or excess > _excess(each, before.value)):
            before = WorstValue(each.value, evaluated_ns)
        if before is not None:
            values[key] = before
    for key in list(values)[:-MAX_WORST_VALUES]:
        del values[key]


def _excess(evidence: FindingEvidence, value: float | None = None) -> float:
    """Return how far a value, by default that of the evidence, is beyond the limit; NaN if it is none of a measure."""
    if evidence.slots == 0 or not is_measure(evidence.signal):
        return math.nan  # a report, a setting, an age; a count, whose windows differ
    limit = 0.0 if evidence.comparison == TIMES_PAST else evidence.threshold
    excess = (evidence.value if value is None else value) - limit
    is_low = evidence.signal in _BAD_WHEN_LOW and evidence.comparison != CHANGE
    return -excess if is_low else excess
