"""Detectors of leaf switches, by comparison of all NICs below each of them with those of the others and with their past.

A leaf switch reports nothing itself: marks, pause and losses of its NICs show its settings, its queues and its uplinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.network_detectors import (
    MIN_PAUSED,
    MIN_PAUSING,
    MIN_UNPROTECTED,
    PAUSED_FACTOR,
    loaded_nics,
    victims,
)
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import (
    Floats,
    Positions,
    divide,
    mean_known,
    median_known,
    or_zero,
)

MIN_MEMBERS, LOSS_SLOTS = 3, 2 * findings.SLOTS_PER_MINUTE
MIN_MARKS, USUAL_LOAD = 2.0, 0.5
"""Usual marks per second of each NIC, and share of the usual load, from which on no marks in half a minute show a changed setting."""


def faulty_leaves(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield faults of leaf switches, by comparison of each leaf with the others and with its past."""
    nic, use = view.signals.nic, loaded_nics(view)
    if np.bincount(view.groups.nic_leaf[use] + 1)[1:].max(initial=0) < MIN_MEMBERS:
        return
    frames, marks = _means(view, nic["pause_frames"], use), _means(view, nic["marks"], use)
    pauses = findings.above(nic["pausing_share"], MIN_PAUSING)
    usual_marks = _means(view, view.base(DeviceKind.NIC, "marks"), use)
    loads = _means(view, nic["receive"], use)
    usual_loads = _means(view, view.base(DeviceKind.NIC, "receive"), use)
    nic_losses = _NicLosses.read(view)
    losses = _means(view, nic_losses.rates, use)
    paused = _means(view, nic["paused_share"], use)
    lossy, all_leaves = dict[int, findings.Finding](), np.arange(len(frames))
    exchange = _exchanging_leaves(view) if (losses > 0).any() else None
    for leaf, members in enumerate(view.groups.leaves):
        positions = members[use[members]]
        if len(positions) < MIN_MEMBERS:
            continue
        other_leaves = all_leaves[all_leaves != leaf]
        cause = findings.Cause("leaf", leaf, view.groups.leaf_names[leaf])
        # Fewer packets have fewer marks: only at the usual load does their end show a changed setting.
        ended = usual_marks[leaf] > MIN_MARKS and loads[leaf] > USUAL_LOAD * usual_loads[leaf]
        ended &= marks[leaf] == 0 and (marks[other_leaves] > 0).any()
        # PFC spreads through spines: senders that a receiver elsewhere pauses have no queue at their leaf to mark.
        if ended and not pauses[view.rail_around(int(positions[0]))].any():
            limit = float(or_zero(median_known(frames[other_leaves])))
            pause = findings.FindingEvidence(
                "pause_frames", float(frames[leaf]), limit, "other leaves", cause.name
            )
            yield findings.Finding(
                "ecn_inactive",
                cause,
                (
                    pause,
                    findings.FindingEvidence(
                        "marks",
                        0.0,
                        float(np.nanmax(marks[other_leaves])),
                        "other leaves",
                        cause.name,
                    ),
                ),
            )
            continue
        # The leaves that exchange with it lose the packets between them as well.
        apart = other_leaves if exchange is None else np.flatnonzero(~exchange[leaf])
        usual_losses = float(or_zero(median_known(losses[apart])))
        compared = nic_losses._replace(
            usual=np.fmax(usual_losses, nic_losses.usual),
            opposite=_opposite(view, leaf, exchange, use),
        )
        for found in _losses(view, cause, positions, paused, compared):
            if found.incident_class == "leaf_loss":
                lossy[leaf] = found
            else:
                yield found
    if exchange is not None:
        yield from _origins(lossy, losses, exchange)


JOINED_LOSSES = 0.5
"""Minimum ratio of a leaf's losses to those of another leaf with the same jobs on the same rail. Below it, they are
attributed to the traffic with that leaf.
"""


def _origins(
    lossy: dict[int, findings.Finding],
    losses: Floats,
    exchange: findings.Flags,
) -> Iterator[findings.Finding]:
    """Yield the leaves at which packets are lost, without those whose NICs exchange with these.

    A loss is counted by both ends, so that leaves of a job's pods have losses in the share of the traffic between them.
    Leaves that lose alike are alternatives: hosts cannot distinguish them.
    """
    for leaf, finding in lossy.items():
        joined = [other for other in lossy if other != leaf and exchange[leaf, other]]
        if all(losses[leaf] >= JOINED_LOSSES * losses[other] for other in joined):
            alike = tuple(
                other for other in joined if JOINED_LOSSES * losses[leaf] <= losses[other]
            )
            yield replace(finding, alternatives=alike)


def _exchanging_leaves(view: findings.DiagnosisView) -> findings.Flags:
    """Return, for each two leaves, if their NICs exchange: they are of one rail and of a common job, or without a job."""
    groups = view.groups
    shares = np.zeros((len(groups.leaves), len(view.jobs) + 1), np.float32)
    for number, job in enumerate(view.jobs):
        leaves = groups.nic_leaf[job.nics]
        shares[leaves[leaves >= 0], number] = 1.0
    shares[:, -1] = ~shares.any(axis=1)
    rails = np.array([groups.nic_rail[nics[0]] if len(nics) else -1 for nics in groups.leaves])
    found: findings.Flags = (shares @ shares.T > 0) & (rails[:, None] == rails)
    return found


MIN_LOSSES, LOSS_FACTOR = 0.2, 4.0
"""Lost packets of a NIC below a leaf that loses packets: per second, and relative to those of the other leaves and of its past."""


class _NicLosses(NamedTuple):
    """Missing packets per second of each NIC, those that are usual, and True where the NIC itself has not lost them."""

    rates: Floats
    usual: Floats
    clean: findings.Flags
    opposite: Positions
    """Loaded NICs below the leaves with which the leaf in question exchanges."""

    @classmethod
    def read(cls, view: findings.DiagnosisView) -> Self:
        """Return those of all NICs, compared with their past."""
        nic = view.signals.nic
        clean = ~findings.above(nic["discards"], MIN_LOSSES)
        clean &= ~findings.above(nic["uncorrected_symbols"], 0.0)
        clean &= ~findings.above(nic["unprotected_share"], MIN_UNPROTECTED)
        names = ("out_of_order", "naks")
        past = (or_zero(view.base(DeviceKind.NIC, name)) for name in names)
        rates = np.fmax(*(nic[name] for name in names))
        return cls(rates, np.fmax(*past), clean, np.zeros(0, np.intp))


MIN_OUT_OF_ORDER, MIN_TIMEOUTS = 0.2, 0.02
"""Packets out of order, and acknowledgement timeouts, per second and NIC: with more timeouts, the fabric loses packets."""


def _losses(
    view: findings.DiagnosisView,
    cause: findings.Cause,
    positions: Positions,
    paused: Floats,
    losses: _NicLosses,
) -> Iterator[findings.Finding]:
    """Yield a leaf that loses packets, and pauses none of its NICs, or some as others do."""
    nic = view.signals.nic
    order, timeouts = nic["out_of_order"][positions], nic["ack_timeouts"][positions]
    leaf = cause.position
    evidence = (
        findings.FindingEvidence(
            "out_of_order", mean_known(order), MIN_OUT_OF_ORDER, "limit", cause.name
        ),
        findings.FindingEvidence(
            "ack_timeouts", mean_known(timeouts), MIN_TIMEOUTS, "limit", cause.name
        ),
    )
    limits = np.fmax(MIN_LOSSES, LOSS_FACTOR * losses.usual)
    lossy = mean_known(order) > float(limits[positions].mean())
    lossy |= mean_known(timeouts) > MIN_TIMEOUTS
    if paused[leaf] == 0 and lossy and (paused > 0).any():
        yield findings.Finding("lossless_broken", cause, evidence)
        return
    hit = findings.above(losses.rates, limits) & losses.clean
    affected = positions[hit[positions]]
    if (
        _is_common(view, affected, losses.opposite[hit[losses.opposite]])
        and _lasts(view, affected)
        and _is_lost(view, affected)
        and not _has_one_sender(view, affected)
    ):
        compared = findings.Compared(
            "losses", losses.rates, limits, "other leaves and baseline", LOSS_SLOTS
        )
        of_nics = compared.of_nics(view, affected)
        yield findings.Finding("leaf_loss", cause, of_nics, parts=tuple(affected.tolist()))


MIN_PATHS = 2
"""Nodes with losses on a rail at each of two leaves that exchange, whose common paths are at fault: two of their own links rarely fail at once."""


def _is_common(view: findings.DiagnosisView, affected: Positions, opposite: Positions) -> bool:
    """True if enough NICs below a leaf lose packets that each may not have a fault of its own, or two, and two at the other ends."""
    ends = (np.unique(view.groups.nic_node[each]) for each in (affected, opposite))
    return len(affected) >= MIN_MEMBERS or all(len(nodes) >= MIN_PATHS for nodes in ends)


def _opposite(
    view: findings.DiagnosisView, leaf: int, exchange: findings.Flags | None, use: findings.Flags
) -> Positions:
    """Return the loaded NICs below the leaves with which a leaf exchanges."""
    if exchange is None:
        return np.zeros(0, np.intp)
    leaves = np.flatnonzero(exchange[leaf])
    return np.flatnonzero(use & np.isin(view.groups.nic_leaf, leaves[leaves != leaf]))


def _lasts(view: findings.DiagnosisView, affected: Positions) -> bool:
    """True if most NICs lose packets in several slots of two minutes: overlapping windows show one burst several times."""
    slots = view.signals.slots(DeviceKind.NIC, LOSS_SLOTS)
    losses = np.fmax(slots["out_of_order"], slots["naks"])[:, affected]
    return bool(np.median(findings.above(losses, 0.0).sum(axis=0)) > 1)


MIN_REPORTED = 0.1
"""Packets that receivers reported missing, relative to those out of order; spraying reorders without a loss."""


def _is_lost(view: findings.DiagnosisView, affected: Positions) -> bool:
    """True unless packets are out of order and hardly any is reported missing, as where switches spray them."""
    nic, rails = view.signals.nic, view.groups.nic_rail
    of_rails = np.isin(rails, rails[affected])
    naks = nic["naks"][of_rails]
    if np.isnan(naks).all():
        return True
    reordered = float(np.nansum(nic["out_of_order"][of_rails]))
    return float(np.nansum(naks)) >= MIN_REPORTED * reordered


SENDER_SHARE = 0.8
"""Share of the missing packets of one sender beyond which those of the others are the few that healthy links lose."""


def _has_one_sender(view: findings.DiagnosisView, affected: Positions) -> bool:
    """True if the receivers report nearly all missing packets to one NIC: its link corrupts them, not the switch."""
    rails, naks = view.groups.nic_rail, view.signals.nic["naks"]
    senders = np.isin(rails, rails[affected]) & loaded_nics(view) & ~np.isnan(naks)
    reports = naks[senders]
    return len(reports) > MIN_MEMBERS and bool(reports.max() > SENDER_SHARE * reports.sum())


MIN_PAUSED_SENDERS, MIN_SENDER_PAUSED = 2, 0.02
"""Senders below a leaf, and the share of time in which they are paused, that show a queue that does not mark."""
NOTIFICATIONS_PER_SECOND = 10_000.0
"""Notifications of a sender in a second of pause from which on its queue marks: a queue marks all packets before it pauses. In
simulated runs, senders of marking queues had more than 100,000, and those of others up to 8,000, by marks elsewhere.
"""


def unmarked_leaves(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield leaves that pause senders without marking their packets.

    A queue marks before it pauses, so that paused senders get notifications as well. That of a receiver that pauses its
    switch port may stand still instead, also one without an agent: then no packet passes that could be marked. So the queue must be
    that to a receiver whose link is crowded.
    """
    nic, groups = view.signals.nic, view.groups
    base = or_zero(view.base(DeviceKind.NIC, "paused_share"))
    limit = np.fmax(MIN_SENDER_PAUSED, PAUSED_FACTOR * base)
    paused = findings.above(nic["paused_share"], limit)
    if np.count_nonzero(paused) < MIN_PAUSED_SENDERS:
        return
    compared = findings.Compared("paused_share", nic["paused_share"], limit, "baseline")
    # A sender that ignores notifications has received them.
    notified = nic["notifications_handled"] + or_zero(nic["notifications_ignored"])
    silent = findings.above(nic["marked_share"], CROWDED_MARKED) & (nic["notifications_sent"] == 0)
    pauses = findings.above(nic["pausing_share"], MIN_PAUSING)
    crowded = findings.above(nic["receive"], CROWDED_RECEIVE) & groups.is_rail
    for members in groups.leaves:
        of_leaf = members[paused[members] & ~np.isnan(notified[members])]
        if len(of_leaf) < MIN_PAUSED_SENDERS:
            continue
        around = view.rail_around(int(of_leaf[0]))
        few = NOTIFICATIONS_PER_SECOND * nic["paused_share"][of_leaf]
        # A receiver of marked packets that sends no notifications is the reason.
        if (pauses | silent)[around].any() or (notified[of_leaf] > few).any():
            continue
        leaves = np.unique(groups.nic_leaf[crowded & around])
        evidence = compared.of_nics(view, of_leaf)
        if len(leaves) == 1 and leaves[0] >= 0:
            leaf = int(leaves[0])
            cause = findings.Cause("leaf", leaf, groups.leaf_names[leaf])
            yield findings.Finding("ecn_inactive", cause, evidence)


CROWDED_RECEIVE, CROWDED_MARKED = 0.7, 0.02
"""Share of the line rate, or of marked packets, from which on the queue to a receiver is crowded."""
MIN_RAIL_LOSSES, MIN_LEAF_PAUSED = 0.7, 1e-3
"""Share of the losses of the rail below the leaf, and share of time in which a NIC is paused from which on the leaf does pause."""
SPARED_SHARE = 0.25
"""Load of a receiver, relative to one that loses packets, from which on a leaf that loses packets by chance would lose its packets too."""


def overflowing_leaves(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield leaves that lose packets at crowded receivers only, and pause no sender: a full queue drops what pause should hold back."""
    nic, groups, use = view.signals.nic, view.groups, loaded_nics(view)
    losses = _NicLosses.read(view)
    order = nic["out_of_order"]
    limit = np.fmax(MIN_LOSSES, LOSS_FACTOR * or_zero(view.base(DeviceKind.NIC, "out_of_order")))
    lossy = use & findings.above(order, limit) & losses.clean
    if not lossy.any():
        return
    crowded = findings.above(nic["receive"], CROWDED_RECEIVE) | findings.above(
        nic["marked_share"], CROWDED_MARKED
    )
    for leaf, members in enumerate(groups.leaves):
        hit = members[lossy[members]]
        if not len(hit) or not crowded[hit].all():
            continue
        around = view.rail_around(int(hit[0]))
        if np.nansum(order[hit]) < MIN_RAIL_LOSSES * np.nansum(order[around]):
            continue
        if findings.above(nic["paused_share"][members], MIN_LEAF_PAUSED).any():
            continue
        spared = members[use[members] & ~findings.above(order[members], 0.0)]
        if not findings.above(
            nic["receive"][spared], SPARED_SHARE * float(nic["receive"][hit].max())
        ).any():
            continue
        if not _lasts(view, hit):
            continue
        evidence = findings.Compared("out_of_order", order, limit, "baseline").of_nics(view, hit)
        cause = findings.Cause("leaf", leaf, groups.leaf_names[leaf])
        yield findings.Finding("lossless_broken", cause, evidence, parts=tuple(hit.tolist()))


def paused_leaves(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield leaves below which NICs are paused; a symptom, reported only if nothing explains it."""
    paused = victims(view)
    compared = findings.Compared("paused_share", view.signals.nic["paused_share"], MIN_PAUSED)
    for leaf, members in enumerate(view.groups.leaves):
        affected = members[paused[members]]
        if len(affected) >= MIN_MEMBERS:
            evidence = compared.of_nics(view, affected)
            cause = findings.Cause("leaf", leaf, view.groups.leaf_names[leaf])
            yield findings.Finding(
                "paused_unlocalised", cause, evidence, parts=tuple(affected.tolist())
            )


def _means(view: findings.DiagnosisView, values: Floats, use: findings.Flags) -> Floats:
    """Return the mean of each leaf's NICs in use; NaN without any."""
    known_values = use & ~np.isnan(values) & (view.groups.nic_leaf >= 0)
    leaf, count = view.groups.nic_leaf[known_values], len(view.groups.leaves)
    sums = np.bincount(leaf, values[known_values], minlength=count).astype(np.float64)
    return divide(sums, np.bincount(leaf, minlength=count).astype(np.float64))
