"""Advice about ECN that marks too late, as hosts show it by their pauses and marks.

A fault that explains the same readings takes precedence (`ranking`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.leaf_detectors import MIN_MEMBERS, USUAL_LOAD
from railscope_collector.diagnosis.network_detectors import MIN_PAUSING, loaded_nics
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import (
    Floats,
    Positions,
    mean_known,
    median_known,
    or_zero,
)

MIN_LATE_PAUSED, CERTAIN_LATE_PAUSED = 0.001, 0.01
"""Share of time in which senders are paused before any packet is marked; the second without other rails to compare with."""
MIN_LATE_NICS = 0.65
"""Share of a leaf's NICs that must be paused: pause of fewer may be due to a receiver without an agent."""
PAUSED_PER_MARKED, LATE_FACTOR = 3.0, 8.0
"""Share of pause relative to the highest share of marks, and to the pause of the other rails, from which on ECN acts too late."""


def late_marks(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield leaves that pause senders before they mark packets.

    While a switch pauses, its queue is longer than the PFC threshold. With a lower ECN threshold it would mark every packet
    that leaves this queue: the receiver of the queue would see at least the share of marked packets that the
    senders see as share of time. The queue may be below any leaf of the rail, unless marks became rare below one of them when the
    pauses began.
    """
    nic = view.signals.table(DeviceKind.NIC, findings.SLOTS_PER_MINUTE)
    groups, use = view.groups, loaded_nics(view) & view.groups.is_rail
    quantile = 1 - MIN_LATE_NICS
    of_leaves = (_of_leaf(nic["paused_share"], each, use, quantile) for each in groups.leaves)
    paused = np.fromiter(of_leaves, np.float64)
    rails = np.array([groups.nic_rail[each[0]] if len(each) else -1 for each in groups.leaves])
    for rail in np.unique(rails[findings.above(paused, MIN_LATE_PAUSED)]).tolist():
        members = np.flatnonzero((groups.nic_rail == rail) & use)
        highest = float(or_zero(nic["marked_share"][members]).max(initial=0.0))
        pauses = findings.above(nic["pausing_share"][members], MIN_PAUSING).any()
        if not highest or pauses:
            continue  # ECN is inactive or not counted, or a receiver is too slow
        leaves = np.flatnonzero(rails == rail)
        marked = np.array([_highest_marked(view, leaf, use, highest) for leaf in leaves.tolist()])
        usual = float(or_zero(median_known(paused[rails != rail])))
        by_marks = PAUSED_PER_MARKED * marked
        limits = np.fmax(max(LATE_FACTOR * usual, MIN_LATE_PAUSED), by_marks)
        limits = np.fmin(limits, np.fmax(CERTAIN_LATE_PAUSED, by_marks))
        is_found = findings.above(paused[leaves], limits)
        if is_found.any():
            found, shares = leaves[is_found], marked[is_found]
            medians = [_of_leaf(nic["marked_share"], groups.leaves[n], use, 0.5) for n in found]
            order = np.argsort(medians)
            leaf, *alternatives = found[order].tolist()
            values = float(paused[leaf]), usual, float(shares[order[0]])
            yield _late_marks(view, (leaf, alternatives), values)


MAX_LEFT_MARKS = 1 / 3
"""Share of its usual marks below which those of a leaf became rare, and of its pauses that may have been usual before."""


def _highest_marked(
    view: findings.DiagnosisView, leaf: int, use: findings.Flags, of_rail: float
) -> float:
    """Return the highest share of marks at the queues that may pause senders: of a rail, or of a leaf with rare marks."""
    members = view.groups.leaves[leaf]
    members = members[use[members]]
    nic = view.signals.table(DeviceKind.NIC, findings.SLOTS_PER_MINUTE)
    now, past = {}, {}
    for name in ("marked_share", "paused_share", "receive"):
        both = nic[name][members], view.base(DeviceKind.NIC, name)[members]
        are_known = ~np.isnan(both[0] + both[1])
        now[name], past[name] = (mean_known(each[are_known]) for each in both)
    became_rare = (
        now["marked_share"] < MAX_LEFT_MARKS * past["marked_share"]
        and now["receive"] > USUAL_LOAD * past["receive"]
        and past["paused_share"] < MAX_LEFT_MARKS * now["paused_share"]
    )
    cause = findings.Cause("leaf", leaf, view.groups.leaf_names[leaf])
    if became_rare or ("ecn_late", cause) in view.open_faults:
        return float(or_zero(nic["marked_share"][members]).max(initial=0.0))
    return of_rail


def _of_leaf(values: Floats, members: Positions, use: findings.Flags, quantile: float) -> float:
    """Return a quantile of the NICs in use below a leaf; NaN for too few."""
    positions = members[use[members]]
    present = np.sort(values[positions][~np.isnan(values[positions])])
    return (
        float(present[int(quantile * (len(present) - 1))])
        if len(present) >= MIN_MEMBERS
        else np.nan
    )


def _late_marks(
    view: findings.DiagnosisView, leaves: tuple[int, list[int]], shares: tuple[float, float, float]
) -> findings.Finding:
    leaf, alternatives = leaves
    paused, usual, marked = shares
    name = view.groups.leaf_names[leaf]
    return findings.Finding(
        "ecn_late",
        findings.Cause("leaf", leaf, name),
        (
            findings.FindingEvidence(
                "paused_share", paused, usual, "other rails", name, slots=findings.SLOTS_PER_MINUTE
            ),
            findings.FindingEvidence(
                "marked_share",
                marked,
                paused,
                "highest of the queues that may pause; at least the share of pause if ECN acts first",
                name,
                slots=findings.SLOTS_PER_MINUTE,
            ),
        ),
        alternatives=tuple(alternatives),
        detail=f"senders are paused {paused:.2%} of the time, and at most {marked:.2%} of the packets of any receiver are marked",
    )
