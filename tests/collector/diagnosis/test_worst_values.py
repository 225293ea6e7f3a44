"""Worst values of evidence: those beyond the limit only, by the direction of the signal, also of devices that are listed again."""

from __future__ import annotations

import math

import msgspec
import pytest
from support.drawn_cluster import DrawnCluster, Row
from support.drawn_readings import ONSET, healthy_feed, run

from railscope_collector.diagnosis.findings import (
    CHANGE,
    EVENT,
    OWN_PAST,
    TIMES_PAST,
    FindingEvidence,
)
from railscope_collector.diagnosis.worst_values import (
    MAX_WORST_VALUES,
    EvidenceKey,
    WorstValue,
    add_worst,
)
from railscope_collector.workloads.job_roster import JobKey

NAN = math.nan


def worst_of(rows: list[FindingEvidence]) -> WorstValue | None:
    """Return the worst value after evaluations with one piece of evidence each."""
    values: dict[EvidenceKey, WorstValue] = {}
    for number, each in enumerate(rows, 1):
        add_worst(values, (each,), number)
    return values.get(EvidenceKey.of(rows[0]))


@pytest.mark.parametrize(
    ("signal", "comparison", "values", "threshold", "worst"),
    [
        ("pausing_share", "limit", [0.2, 0.6, 0.3], 0.1, (0.6, 2)),
        ("pausing_share", "limit", [0.6, 0.6], 0.1, (0.6, 1)),
        ("pausing_share", "limit", [NAN, 0.3, NAN], 0.1, (0.3, 2)),
        # On the good side of its limit, nothing is the worst value.
        ("uncorrected_symbols", "limit", [0.033, 0.0, 0.033], 0.05, None),
        ("uncorrected_symbols", "limit", [0.87, 0.0, 0.033], 0.05, (0.87, 1)),
        ("out_of_order", "limit", [0.02, 3.0, 0.0], 0.1, (3.0, 2)),
        ("pcie_width", "limit", [0.5, 0.25, 1.0], 1.0, (0.25, 2)),
        ("queue_marked_share", "share of samples with a deep queue", [0.02, 0.3], 0.1, (0.02, 1)),
        ("utilization", OWN_PAST, [0.5, 0.2, 0.4], 0.8, (0.2, 2)),
        ("utilization", CHANGE, [1.1, 1.3, 1.2], 1.05, (1.3, 2)),
        ("read_latency", TIMES_PAST, [0.01, 0.05, 0.02], 4.2, (0.05, 2)),
        ("utilization", "gone", [NAN], NAN, None),
        ("link_downs", "limit", [2.0, 3.0], 0.0, None),
        ("remap_pending", "limit", [1.0], 0.0, None),
        ("trust", "trust pcp, 40 peers have dscp", [8.0], 40.0, None),
    ],
)
def test_a_worst_value_is_beyond_the_limit_in_the_direction_of_the_signal(
    signal: str,
    comparison: str,
    values: list[float],
    threshold: float,
    worst: tuple[float, int] | None,
) -> None:
    assert (
        worst_of([FindingEvidence(signal, v, threshold, comparison, "n1") for v in values]) == worst
    )


@pytest.mark.parametrize("signal", ["xid 79", "headroom_used"])
def test_what_has_no_window_has_no_worst_value(signal: str) -> None:
    comparison = EVENT if signal == "xid 79" else "its headroom"
    assert worst_of([FindingEvidence(signal, 1.0, 0.0, comparison, "n1", slots=0)]) is None


def test_a_device_that_is_not_listed_for_some_evaluations_keeps_its_worst_value() -> None:
    values: dict[EvidenceKey, WorstValue] = {}
    first, again = (FindingEvidence("naks", v, 1.0, "limit", "n1 eth1") for v in (50.0, 2.0))
    add_worst(values, (first,), 1)
    add_worst(values, (FindingEvidence("naks", 9.0, 1.0, "limit", "n2 eth1"),), 2)
    add_worst(values, (again,), 3)
    assert values[EvidenceKey.of(again)] == (50.0, 1)


def test_the_devices_that_were_listed_last_remain() -> None:
    values: dict[EvidenceKey, WorstValue] = {}
    kept = FindingEvidence("naks", 5.0, 1.0, "limit", "kept")
    for number in range(2 * MAX_WORST_VALUES):
        add_worst(values, (FindingEvidence("naks", 9.0, 1.0, "limit", f"n{number}"), kept), number)
    assert len(values) == MAX_WORST_VALUES
    assert values[EvidenceKey.of(kept)] == (5.0, 0)
    assert EvidenceKey("naks", "n0", None) not in values


def degraded(cluster: DrawnCluster, row: Row, since: int) -> None:
    """A transceiver with a burst of symbols that it could not correct, and bit errors all the time."""
    if since >= 0:
        node = cluster.jobs[0].nodes[1]
        row.nic["bit_errors"][node, 2] = 1e-4
        row.nic["uncorrected"][node, 2] = 9.0 if since == 4 else 0.0


def test_the_burst_of_a_second_signal_remains_and_survives_a_restart() -> None:
    (found,) = run(healthy_feed(), degraded, ONSET + 20)
    assert found.class_name == "transceiver_degraded"
    second = found.evidence[1]
    assert (second.signal, second.value) == ("uncorrected_symbols", 0.0)
    worst = found.worst_values[EvidenceKey.of(second)]
    assert worst.value > second.threshold
    saved = msgspec.msgpack.encode(
        found.worst_values | {EvidenceKey("a", "b", JobKey("c", "d", "e")): worst}
    )
    restored = msgspec.msgpack.decode(saved, type=dict[EvidenceKey, WorstValue])
    assert restored[EvidenceKey.of(second)] == worst
    assert restored[EvidenceKey("a", "b", JobKey("c", "d", "e"))] == worst
