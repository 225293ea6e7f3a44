"""Detectors of congestion at NICs: pause, marks and notifications.

A NIC that transmits pause cannot accept all data that arrives; one that receives pause is a victim of a queue
further on. Every threshold is compared with the peers below the same leaf and with the NIC's own past,
so that sites with a permanent level of pause or marks stay quiet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from railscope_collector.diagnosis import findings, gpu_detectors
from railscope_collector.diagnosis.jobs import MAD_SCALE
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import SignalTable
from railscope_collector.diagnosis.slot_sums import Floats, Positions, divide, median_known, or_zero

MIN_SOCKET_NICS = 2
MIN_SPREAD_NICS, SPREADS = 8, 3.0
"""NICs of a job that show how much their load differs at one time, and such deviations beyond which a NIC stands out."""
MIN_LOAD = 0.005
"""Share of the line rate above which a NIC is in use."""


def loaded_nics(view: findings.DiagnosisView) -> findings.Flags:
    """Return the NICs that carry RDMA traffic now."""
    nic = view.signals.nic
    return findings.above(np.fmax(nic["send"], nic["receive"]), MIN_LOAD)


MIN_PAUSING = 0.003
"""Share of time in which a NIC pauses its switch port, beyond that of its peers and of its past: above it, it is a slow receiver."""
PAUSING_FACTOR, PAUSING_DEVIATIONS = 6.0, 6.0
"""A slow receiver pauses this many times its own past, and this many standard deviations beyond the median of its peers."""


def _pausing_limit(view: findings.DiagnosisView) -> Floats:
    """Return the share of pause beyond which a NIC is slower than its peers and its own past."""
    nic = view.signals.nic
    medians, deviations = view.groups.leaf_peers(nic["pausing_share"], view.groups.is_rail)
    baseline = view.base(DeviceKind.NIC, "pausing_share")
    return MIN_PAUSING + np.fmax(
        or_zero(medians) + PAUSING_DEVIATIONS * or_zero(deviations),
        PAUSING_FACTOR * or_zero(baseline),
    )


def _may_pause(view: findings.DiagnosisView) -> bool:
    """True if any NIC pauses more than the least of all limits, or reports a storm."""
    nic = view.signals.nic
    share = np.fmax(nic["pausing_share"], nic["pausing_frames"])
    pauses = findings.above(share, MIN_PAUSING)
    return bool((pauses | findings.above(nic["pause_storms"], 0.0)).any())


def slow_receivers(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield NICs that pause their switch port: storms, and slow receivers with the reason."""
    nic = view.signals.nic
    if not _may_pause(view):
        return
    limit = _pausing_limit(view)
    # A NIC that reports a storm and pauses most of the window received the rest before or after it.
    is_stopped = findings.above(nic["pausing_share"], STORM_PAUSING)
    is_stopped |= ~findings.above(nic["receive"], STORM_RECEIVE)
    reports = findings.above(nic["pause_storms"], 0.0) & is_stopped
    # The pauses of the window may be those of before the senders stopped, as for a checkpoint.
    newest = view.signals.table(DeviceKind.NIC, 1)
    stopped_now = _stopped(view, newest)
    storm = reports | (_stopped(view, nic) & (stopped_now | np.isnan(newest["pausing_share"])))
    # The window may not show a storm yet: it would be a slow receiver until then.
    slow = (
        findings.above(nic["pausing_share"], limit)
        & findings.above(nic["pausing_share"], nic["paused_share"])
        & (_pauses_again(view, limit / 2) | (nic["pcie_width"] < 1) | (nic["pcie_speed"] < 1))
        & ~storm
        & ~stopped_now
    )
    if slow.any():
        slow &= ~gpu_detectors.nics_of_degraded_links(view)
    compared = findings.Compared("pausing_share", nic["pausing_share"], limit, "peers and baseline")
    for position in np.flatnonzero(storm).tolist():
        yield _pausing(view, "pfc_storm", position, compared)
    found = np.flatnonzero(slow)
    for cause, parts in _merge_sockets(view, found, storm):
        if cause is not None:
            evidence = compared.of_nics(view, parts)
            yield findings.Finding("host_bound_receiver", cause, evidence, parts=tuple(parts))
            continue
        for position in parts:
            reason = _pcie_reason(view, position)
            name = "pcie_bound_receiver" if reason else "slow_receiver"
            yield _pausing(view, name, position, compared, reason)


BURST_SLOTS, MIN_BURST_DISTANCE = 5, 2
"""Slots in which a NIC must pause, and distance of the first and the last of these: one burst may be in two slots."""


def _pauses_again(view: findings.DiagnosisView, limit: Floats) -> findings.Flags:
    """Return the NICs that pause in more slots than one burst: all windows that overlap show a burst."""
    slots = view.signals.slots(DeviceKind.NIC, BURST_SLOTS)
    shown = findings.above(slots["pausing_share"], limit)
    oldest, newest = shown.argmax(axis=0), BURST_SLOTS - 1 - shown[::-1].argmax(axis=0)
    found: findings.Flags = shown.any(axis=0) & (newest - oldest >= MIN_BURST_DISTANCE)
    return found


STORM_PAUSING = 0.5
"""Share of time in which a NIC in a PFC storm pauses its switch port."""
STORM_RECEIVE, STORM_RECEIVE_SHARE = 0.03, 0.2
"""Load, and share of what it received before, above which such a NIC is not stopped: a job with little exchange receives little."""


def _stopped(view: findings.DiagnosisView, nic: SignalTable) -> findings.Flags:
    """Return the NICs that pause most of the time and receive nothing; frames are an upper bound where no duration is counted."""
    pausing = nic["pausing_share"]
    share = np.where(np.isnan(pausing), nic["pausing_frames"], pausing)
    past = view.base(DeviceKind.NIC, "receive")
    left = np.where(past > MIN_LOAD, STORM_RECEIVE_SHARE * past, np.inf)
    limit = np.minimum(STORM_RECEIVE, left)
    return findings.above(share, STORM_PAUSING) & ~findings.above(nic["receive"], limit)


def _pausing(
    view: findings.DiagnosisView,
    name: str,
    position: int,
    compared: findings.Compared,
    more: findings.Evidence = (),
) -> findings.Finding:
    evidence = (*compared.of_nics(view, [position]), *more)
    share = float(or_zero(view.signals.nic["pausing_share"][position]))
    return findings.Finding(name, findings.Cause("nic", position), evidence, min(1.0, 0.5 + share))


MIN_STALL, MIN_DISCARDS = 0.1, 0.5
"""Share of time in which PCIe stalls writes of a slow receiver, and packets per second that it discards: above either, PCIe is the cause."""


def _pcie_reason(view: findings.DiagnosisView, position: int) -> findings.Evidence:
    """Return the evidence that PCIe limits a NIC."""
    limits = {
        "write_stall": MIN_STALL,
        "discards": MIN_DISCARDS,
        "pcie_width": 1.0,
        "pcie_speed": 1.0,
    }
    compared = (findings.Compared(name, view.signals.nic[name], limits[name]) for name in limits)
    return tuple(
        shown
        for each in compared
        for shown in each.of_nics(view, [position])
        if (
            shown.value < shown.threshold
            if shown.signal.startswith("pcie_")
            else shown.value > shown.threshold
        )
    )


SOCKET_SHARE = 0.7
"""Share of the NICs of the same sockets that must be slow receivers for the node to be the cause."""


def _merge_sockets(
    view: findings.DiagnosisView, found: Positions, storm: findings.Flags
) -> Iterator[tuple[findings.Cause | None, list[int]]]:
    """Yield the NICs of sockets or nodes that pause together, with the node; else NICs alone."""
    by_node = defaultdict[int, list[int]](list)
    for position in found.tolist():
        by_node[int(view.groups.nic_node[position])].append(position)
    for node, positions in by_node.items():
        narrow = [p for p in positions if view.signals.nic["pcie_width"][p] < 1]
        sockets = {int(view.groups.nic_socket[p]) for p in positions}
        of_sockets = np.isin(view.groups.nic_socket, list(sockets)) & view.groups.is_rail
        members = int((of_sockets & ~storm).sum())
        together = len(positions) >= MIN_SOCKET_NICS and len(positions) >= SOCKET_SHARE * members
        if together and not narrow:
            yield findings.Cause("node", name=view.devices.node_names[node]), positions
        else:
            yield None, positions


MIN_INCAST_MARKED, MIN_INCAST_RECEIVE = 0.004, 0.02
"""Share of marked packets, and load, above which a receiver may have an incast."""
INCAST_MARKS_FACTOR = 4.0
"""A receiver of an incast has this many times the marks of its peers."""
CONTINUOUS_LOAD = 0.2
"""Load from which on ranks exchange most of the time: with less, samples of some NICs contain more exchanges by chance."""


def incast_receivers(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield NICs that receive more than their peers, and have it marked, without pausing."""
    nic, use = view.signals.nic, loaded_nics(view) & view.groups.is_rail
    may_hit = use & findings.above(nic["marked_share"], MIN_INCAST_MARKED)
    if not (may_hit & findings.above(nic["receive"], MIN_INCAST_RECEIVE)).any():
        return
    marked, _ = view.groups.leaf_peers(nic["marked_share"], use)
    usual_marked = np.fmax(or_zero(marked), or_zero(view.base(DeviceKind.NIC, "marked_share")))
    limit = np.fmax(MIN_INCAST_MARKED, INCAST_MARKS_FACTOR * usual_marked)
    has_past = ~np.isnan(view.base(DeviceKind.NIC, "receive"))
    receives_more, usual = _receives_more(view, nic["receive"], use)
    of_minute = view.signals.table(DeviceKind.NIC, findings.SLOTS_PER_MINUTE)["receive"]
    is_steady = findings.above(nic["receive"], CONTINUOUS_LOAD)
    receives_more = np.where(is_steady, receives_more, _receives_more(view, of_minute, use)[0])
    hit = (
        use
        & findings.above(nic["marked_share"], limit)
        & receives_more
        & ~findings.above(nic["pausing_share"], MIN_PAUSING)
    )
    compared = (
        findings.Compared("marked_share", nic["marked_share"], limit, "peers and baseline"),
        findings.Compared("receive", nic["receive"], usual, "peers and baseline"),
    )
    for position in np.flatnonzero(hit).tolist():
        # The root of a tree always receives more than its leaves, and on all rails.
        beside = use & (view.groups.nic_node == view.groups.nic_node[position])
        beside[position] = False
        is_usual_root = beside.any() and receives_more[beside].all()
        delays = _delays_jobs(view, position, has_past=bool(has_past[position]))
        if not has_past[position] and (is_usual_root or not delays):
            continue
        yield findings.Finding(
            "incast_receiver",
            findings.Cause("nic", position),
            tuple(shown for each in compared for shown in each.of_nics(view, [position])),
            float(min(1.0, nic["receive"][position])),
            "" if delays else "info",
        )


INCAST_RECEIVE_FACTOR, INCAST_VARIATION_FACTOR = 1.25, 2.0
"""A receiver of an incast receives this many times what its peers do. Its past counts with this many times its usual variation in
addition.
"""
MIN_TRAINING_EXCHANGE = 0.7
"""Share of its past that a job exchanges at least while it trains: in other phases, some of its NICs receive for the others."""


def _receives_more(
    view: findings.DiagnosisView, received: Floats, use: findings.Flags
) -> tuple[findings.Flags, Floats]:
    """Return the NICs that receive more than their peers and before, and what is usual."""
    baseline = view.base(DeviceKind.NIC, "receive")
    of_peers, _ = view.groups.leaf_peers(received, use)
    (of_job, spread), (past_of_job, _) = (
        _usual_of_job(view, each) for each in (received, baseline)
    )
    # A slower job would receive less everywhere.
    slowdown = np.nan_to_num(divide(of_job, past_of_job), nan=1.0)
    slowdown = np.clip(slowdown, MIN_TRAINING_EXCHANGE, 1.0)
    # The past varies with the phases of a job, too: how much its NICs differ now does not.
    variation = or_zero(view.variation(DeviceKind.NIC, "receive"))
    variation = np.where(np.isnan(spread), INCAST_VARIATION_FACTOR * variation, 0.0)
    baseline = slowdown * baseline + variation
    usual = np.fmax.reduce([or_zero(of_peers), or_zero(baseline), of_job])
    limit = np.fmax(INCAST_RECEIVE_FACTOR * usual, usual + SPREADS * or_zero(spread))
    return findings.above(received, np.fmax(limit, MIN_INCAST_RECEIVE)), usual


def _usual_of_job(view: findings.DiagnosisView, values: Floats) -> tuple[Floats, Floats]:
    """Return the value of the usual NIC of its job, for each NIC, and the scaled deviation of the others if there are many.

    All NICs of an all-to-all exchange receive as much.
    """
    usual, spread = np.zeros(len(values)), np.full(len(values), np.nan)
    for job in view.jobs:
        of_job = values[job.nics]
        usual[job.nics] = center = or_zero(median_known(of_job))
        if np.count_nonzero(~np.isnan(of_job)) >= MIN_SPREAD_NICS:
            spread[job.nics] = MAD_SCALE * median_known(np.abs(of_job - center))
    return usual, spread


def _delays_jobs(view: findings.DiagnosisView, position: int, *, has_past: bool) -> bool:
    """True if a job of the receiver, or one whose senders are paused on its rail, is slower without another cause.

    Without a past, the receiver may be the root of its job's tree: then only other jobs show that it receives too much.
    """
    paused = victims(view) & view.rail_around(position)
    own = int(view.job_of_nic[position])
    numbers = {own, *view.job_of_nic[paused].tolist()} - ({-1} if has_past else {-1, own})
    keys = (view.jobs[number].key for number in numbers)
    return any(
        view.states[key].is_slow and not view.has_cause(key, "incast_receiver") for key in keys
    )


MIN_MARKS = 1.0
"""Marked packets per second above which a NIC must send congestion notifications."""
MIN_IGNORED, MIN_IGNORED_SHARE = 10.0, 0.05
"""Congestion notifications that a NIC ignores: per second, and as a share of all."""
MIN_UNPROTECTED, MIN_UNPROTECTED_SEND = 0.05, 0.005
"""Share of RDMA traffic outside the lossless priorities, and load above which a NIC sends enough for it to count."""
MAX_UNPROTECTED_NICS = 0.6
"""Share of NICs with such traffic above which the site has no lossless priorities."""


def congestion_control_faults(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield NICs, or nodes, with a part of congestion control that does not work."""
    nic, use = view.signals.nic, loaded_nics(view)
    marked = findings.above(nic["marks"], MIN_MARKS) & use
    sends = findings.above(nic["notifications_sent"], 0.0)
    sends_none = np.zeros(len(nic), np.bool_)
    for members in view.groups.leaves if marked.any() else ():
        of_leaf = members[marked[members]]
        peers = of_leaf
        if len(of_leaf) == 1:  # the only one below its leaf: those of its rail
            peers = np.flatnonzero(marked & (view.groups.nic_rail == view.groups.nic_rail[of_leaf]))
        if len(peers) > 1 and sends[peers].mean() >= 0.5:  # noqa: PLR2004 - most of them
            sends_none[of_leaf[~sends[of_leaf] & ~np.isnan(nic["notifications_sent"][of_leaf])]] = (
                True
            )
    sent = findings.Compared("notifications_sent", nic["notifications_sent"], MIN_MARKS)
    yield from _by_node(view, "cnp_not_sent", sends_none, marked, sent)
    total = nic["notifications_ignored"] + or_zero(nic["notifications_handled"])
    ignoring = findings.above(nic["notifications_ignored"], MIN_IGNORED) & findings.above(
        nic["notifications_ignored"], MIN_IGNORED_SHARE * total
    )
    # Of the others, too few notifications arrived to decide.
    reacting = use & findings.above(total, MIN_IGNORED)
    ignored = findings.Compared("notifications_ignored", nic["notifications_ignored"], MIN_IGNORED)
    yield from _by_node(view, "cnp_ignored", ignoring, reacting, ignored)
    sending = findings.above(nic["send"], MIN_UNPROTECTED_SEND) & view.groups.is_rail
    outside = findings.above(nic["unprotected_share"], MIN_UNPROTECTED) & sending
    if sending.any() and outside[sending].mean() > MAX_UNPROTECTED_NICS:
        outside[:] = False  # a site without lossless priorities, or one that cannot be measured
    share = findings.Compared("unprotected_share", nic["unprotected_share"], MIN_UNPROTECTED)
    yield from _by_node(view, "unprotected_traffic", outside, sending, share)


MIN_ALONE = 3
"""NICs of one node that are affected while no NIC of another node is: it is unlikely that each has a fault of its own."""
TIMEOUT_SLOTS = 6
"""Slots of which half must have timeouts: peers that end, as with their job, leave some behind."""
MIN_RETRIES, MIN_TIMEOUTS = 5.0, 0.1
"""Adaptive retransmissions, and acknowledgement timeouts, per second of a NIC beyond which it retransmits."""
RETRY_FACTOR = 8.0
"""A retransmitting NIC has this many times the retransmissions of its peers and its past."""


def retransmitting_nics(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield NICs that retransmit far more than their peers and than before, adaptively or after timeouts."""
    use = loaded_nics(view)
    for signal, minimum in (
        ("adaptive_retransmissions", MIN_RETRIES),
        ("ack_timeouts", MIN_TIMEOUTS),
    ):
        rates = view.signals.nic[signal]
        if not findings.above(rates, minimum).any():
            continue
        peers, _ = view.groups.leaf_peers(rates, use)
        usual = np.fmax(or_zero(peers), or_zero(view.base(DeviceKind.NIC, signal)))
        limit = np.fmax(minimum, RETRY_FACTOR * usual)
        hit = findings.above(rates, limit) & use
        if signal == "ack_timeouts":
            slots = view.signals.slots(DeviceKind.NIC, TIMEOUT_SLOTS)[signal]
            hit &= findings.above(slots, minimum).sum(axis=0) >= TIMEOUT_SLOTS / 2
        compared = findings.Compared(signal, rates, limit)
        for finding in _by_node(view, "transport_retry", hit, use, compared):
            # Timeouts are a symptom of losses elsewhere, of which hosts may not see the place.
            yield replace(finding, severity="info") if signal == "ack_timeouts" else finding


NODE_SHARE = 0.7
"""Share of a node's NICs in use that have a fault: from it on, the node is the cause."""


def _by_node(
    view: findings.DiagnosisView,
    name: str,
    hit: findings.Flags,
    use: findings.Flags,
    compared: findings.Compared,
) -> Iterator[findings.Finding]:
    """Yield the nodes of which most NICs in use are affected, or still some of those of its incident; and the NICs of other nodes."""
    for node in np.unique(view.groups.nic_node[hit]).tolist():
        cause = findings.Cause("node", name=view.devices.node_names[node])
        positions = np.flatnonzero(hit & (view.groups.nic_node == node))
        in_use = int((use & (view.groups.nic_node == node)).sum())
        # Settings are those of a node: of two NICs in use, both show it. What shows only under congestion may show at a few,
        # but then at no other node.
        enough = min(3, max(in_use, 2))
        is_whole = len(positions) >= max(enough, NODE_SHARE * in_use)
        is_whole |= len(positions) >= MIN_ALONE and len(positions) == np.count_nonzero(hit)
        incident = view.open_faults.get((name, cause))
        earlier_parts = set(incident.parts) if incident else set()
        parts = set(positions.tolist()) if is_whole else earlier_parts.intersection(positions)
        if parts:
            # Those without traffic show nothing, as most do in an evaluation of their job.
            parts |= {part for part in earlier_parts if not use[part]}
            evidence = compared.of_nics(view, (p for p in positions.tolist() if p in parts))
            yield findings.Finding(name, cause, evidence, parts=tuple(sorted(parts)))
        for position in positions.tolist():
            if position not in parts:
                evidence = compared.of_nics(view, [position])
                yield findings.Finding(name, findings.Cause("nic", position), evidence)


MIN_PAUSED, PAUSED_FACTOR = 0.01, 2.0
"""Share of time in which a victim is paused, beyond this many times its own past."""
MAX_VICTIM_PAUSING = 0.1
"""Time in which a victim pauses its switch port, relative to the time in which it is paused."""


def victims(view: findings.DiagnosisView) -> findings.Flags:
    """Return the NICs that are paused, beyond their own past, and hardly pause themselves."""
    nic = view.signals.nic
    baseline = or_zero(view.base(DeviceKind.NIC, "paused_share"))
    own_limit = np.fmax(MAX_VICTIM_PAUSING * nic["paused_share"], MIN_PAUSING)
    return findings.above(
        nic["paused_share"], MIN_PAUSED + PAUSED_FACTOR * baseline
    ) & ~findings.above(nic["pausing_share"], own_limit)
