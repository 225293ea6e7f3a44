"""Detectors of congestion: NICs by pause, marks and notifications, and leaf switches by all NICs below them.

A NIC that transmits pause cannot accept all data that arrives; one that receives pause is a victim of a queue
further on. Every threshold is compared with the peers below the same leaf and with the NIC's own past,
so that sites with a permanent level of pause or marks stay quiet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from collector.diagnosis.findings import (
    Cause,
    DiagnosisView,
    Finding,
    FindingEvidence,
    Flags,
    above,
)
from collector.diagnosis.quantities import DeviceKind
from collector.diagnosis.slot_sums import Floats, Positions, divide, mean_known, median_known

MIN_LOAD = 0.005
"""Share of the line rate above which a NIC is in use."""

MIN_PAUSING = 0.003
STORM_PAUSING = 0.5
STORM_RECEIVE = 0.03
BASELINE_FACTOR, DEVIATIONS = 6.0, 6.0
MIN_STALL = 0.1
MIN_DISCARDS = 0.5
_PCIE_LIMITS = {
    "write_stall": MIN_STALL,
    "discards": MIN_DISCARDS,
    "pcie_width": 1.0,
    "pcie_speed": 1.0,
}
MIN_SOCKET_NICS = 3


def loaded_nics(view: DiagnosisView) -> Flags:
    """Return the NICs that carry RDMA traffic now."""
    nic = view.signals.nic
    return above(np.fmax(nic["send"], nic["receive"]), MIN_LOAD)


def _pausing_limit(view: DiagnosisView) -> Floats:
    """Return the share of pause beyond which a NIC is slower than its peers and its own past."""
    nic = view.signals.nic
    medians, deviations = view.groups.leaf_peers(nic["pausing_share"], view.groups.is_rail)
    baseline = view.base(DeviceKind.NIC, "pausing_share")
    return MIN_PAUSING + np.fmax(
        np.nan_to_num(medians) + DEVIATIONS * np.nan_to_num(deviations),
        BASELINE_FACTOR * np.nan_to_num(baseline),
    )


def slow_receivers(view: DiagnosisView) -> Iterator[Finding]:
    """Yield NICs that pause their switch port: storms, and slow receivers with the reason."""
    nic = view.signals.nic
    limit = _pausing_limit(view)
    receives_nothing = ~above(nic["receive"], STORM_RECEIVE)
    stops = above(np.fmax(nic["pausing_share"], nic["pausing_frames"]), STORM_PAUSING)
    storm = (above(nic["pause_storms"], 0.0) & receives_nothing) | (stops & receives_nothing)
    slow = (
        above(nic["pausing_share"], limit)
        & above(nic["pausing_share"], nic["paused_share"])
        & ~storm
    )
    for position in np.flatnonzero(storm).tolist():
        yield _pausing(view, "pfc_storm", position, limit)
    found = np.flatnonzero(slow)
    for cause, parts in _merge_sockets(view, found, storm):
        if cause is not None:
            evidence = tuple(_pausing_evidence(view, each, limit) for each in parts[:4])
            yield Finding("host_bound_receiver", cause, evidence, parts=tuple(parts))
            continue
        for position in parts:
            reason = _pcie_reason(view, position)
            name = "pcie_bound_receiver" if reason else "slow_receiver"
            yield _pausing(view, name, position, limit, reason)


def _pausing(
    view: DiagnosisView,
    name: str,
    position: int,
    limit: Floats,
    more: tuple[FindingEvidence, ...] = (),
) -> Finding:
    evidence = (_pausing_evidence(view, position, limit), *more)
    share = float(np.nan_to_num(view.signals.nic["pausing_share"][position]))
    return Finding(name, Cause("nic", position), evidence, min(1.0, 0.5 + share))


def _pausing_evidence(view: DiagnosisView, position: int, limit: Floats) -> FindingEvidence:
    value, name = view.signals.nic["pausing_share"][position], view.nic_name(position)
    return FindingEvidence(
        "pausing_share", float(value), float(limit[position]), "peers and baseline", name
    )


def _pcie_reason(view: DiagnosisView, position: int) -> tuple[FindingEvidence, ...]:
    """Return the evidence that PCIe limits a NIC."""
    name = view.nic_name(position)
    values = {signal: float(view.signals.nic[signal][position]) for signal in _PCIE_LIMITS}
    return tuple(
        FindingEvidence(signal, values[signal], limit, "limit", name)
        for signal, limit in _PCIE_LIMITS.items()
        if (values[signal] < limit if signal.startswith("pcie_") else values[signal] > limit)
    )


def _merge_sockets(
    view: DiagnosisView, found: Positions, storm: Flags
) -> Iterator[tuple[Cause | None, list[int]]]:
    """Yield the NICs of sockets or nodes that pause together, with the node; else NICs alone."""
    by_node: dict[int, list[int]] = defaultdict(list)
    for position in found.tolist():
        by_node[int(view.groups.nic_node[position])].append(position)
    for node, positions in by_node.items():
        narrow = [p for p in positions if view.signals.nic["pcie_width"][p] < 1]
        sockets = {int(view.groups.nic_socket[p]) for p in positions}
        of_sockets = np.isin(view.groups.nic_socket, list(sockets)) & view.groups.is_rail
        members = int((of_sockets & ~storm).sum())
        together = len(positions) >= MIN_SOCKET_NICS and len(positions) >= 0.7 * members
        if together and not narrow:
            yield Cause("node", name=view.devices.node_names[node]), positions
        else:
            yield None, positions


MIN_INCAST_MARKED = 0.004
MIN_INCAST_RECEIVE = 0.2
INCAST_PEERS, INCAST_MARKS = 1.25, 4.0


def incast_receivers(view: DiagnosisView) -> Iterator[Finding]:
    """Yield NICs that receive more than their peers, and have it marked, without pausing."""
    nic, use = view.signals.nic, loaded_nics(view) & view.groups.is_rail
    received, _ = view.groups.leaf_peers(nic["receive"], use)
    marked, _ = view.groups.leaf_peers(nic["marked_share"], use)
    usual_marked = np.fmax(
        np.nan_to_num(marked), np.nan_to_num(view.base(DeviceKind.NIC, "marked_share"))
    )
    baseline = view.base(DeviceKind.NIC, "receive")
    usual = np.fmax(np.nan_to_num(received), np.nan_to_num(baseline))
    limit = np.fmax(MIN_INCAST_MARKED, INCAST_MARKS * usual_marked)
    hit = (
        use
        & above(nic["marked_share"], limit)
        & above(nic["receive"], np.fmax(INCAST_PEERS * usual, MIN_INCAST_RECEIVE))
        & ~above(nic["pausing_share"], MIN_PAUSING)
    )
    for position in np.flatnonzero(hit).tolist():
        name = view.nic_name(position)
        yield Finding(
            "incast_receiver",
            Cause("nic", position),
            (
                FindingEvidence(
                    "marked_share",
                    float(nic["marked_share"][position]),
                    float(limit[position]),
                    "peers and baseline",
                    name,
                ),
                FindingEvidence(
                    "receive",
                    float(nic["receive"][position]),
                    float(usual[position]),
                    "peers and baseline",
                    name,
                ),
            ),
            float(min(1.0, nic["receive"][position])),
        )


MIN_MARKS_PER_SECOND = 1.0
MIN_IGNORED = 10.0
MIN_IGNORED_SHARE = 0.05
MIN_UNPROTECTED = 0.05
MAX_UNPROTECTED_NICS = 0.6
NODE_SHARE = 0.7


def congestion_control_faults(view: DiagnosisView) -> Iterator[Finding]:
    """Yield NICs, or nodes, with a part of congestion control that does not work."""
    nic, use = view.signals.nic, loaded_nics(view)
    marked = above(nic["marks"], MIN_MARKS_PER_SECOND) & use
    sends = above(nic["notifications_sent"], 0.0)
    sends_none = np.zeros(len(nic), np.bool_)
    for members in view.groups.leaves:
        of_leaf = members[marked[members]]
        if len(of_leaf) > 1 and sends[of_leaf].mean() >= 0.5:  # noqa: PLR2004 - most of them
            sends_none[of_leaf[~sends[of_leaf] & ~np.isnan(nic["notifications_sent"][of_leaf])]] = (
                True
            )
    yield from _by_node(
        view, "cnp_not_sent", sends_none, marked, "notifications_sent", MIN_MARKS_PER_SECOND
    )
    total = nic["notifications_ignored"] + np.nan_to_num(nic["notifications_handled"])
    ignoring = above(nic["notifications_ignored"], MIN_IGNORED) & above(
        nic["notifications_ignored"], MIN_IGNORED_SHARE * total
    )
    reacting = use & above(total, 0.0)
    yield from _by_node(
        view, "cnp_ignored", ignoring, reacting, "notifications_ignored", MIN_IGNORED
    )
    sending = above(nic["send"], 0.02) & view.groups.is_rail
    outside = above(nic["unprotected_share"], MIN_UNPROTECTED) & sending
    if sending.any() and outside[sending].mean() > MAX_UNPROTECTED_NICS:
        outside[:] = False  # a site without lossless priorities, or one that cannot be measured
    yield from _by_node(
        view, "unprotected_traffic", outside, sending, "unprotected_share", MIN_UNPROTECTED
    )


MIN_RETRIES = 5.0
RETRY_FACTOR = 8.0


def retransmitting_nics(view: DiagnosisView) -> Iterator[Finding]:
    """Yield NICs that retransmit far more than their peers and than before."""
    nic, use = view.signals.nic, loaded_nics(view)
    rates = nic["adaptive_retransmissions"]
    peers, _ = view.groups.leaf_peers(rates, use)
    usual = np.fmax(
        np.nan_to_num(peers), np.nan_to_num(view.base(DeviceKind.NIC, "adaptive_retransmissions"))
    )
    limit = np.fmax(MIN_RETRIES, RETRY_FACTOR * usual)
    yield from _by_node(
        view,
        "transport_retry",
        above(rates, limit) & use,
        use,
        "adaptive_retransmissions",
        MIN_RETRIES,
    )


def _by_node(  # noqa: PLR0913, PLR0917 - parts of a finding
    view: DiagnosisView, name: str, hit: Flags, use: Flags, signal: str, limit: float
) -> Iterator[Finding]:
    """Yield the nodes of which most NICs in use are affected, and the NICs of other nodes."""
    values = view.signals.nic[signal]
    for node in np.unique(view.groups.nic_node[hit]).tolist():
        positions = np.flatnonzero(hit & (view.groups.nic_node == node))
        in_use = int((use & (view.groups.nic_node == node)).sum())
        evidence = [
            FindingEvidence(signal, float(values[p]), limit, "limit", view.nic_name(p))
            for p in positions.tolist()
        ]
        if len(positions) >= MIN_SOCKET_NICS and len(positions) >= NODE_SHARE * in_use:
            cause = Cause("node", name=view.devices.node_names[node])
            yield Finding(name, cause, tuple(evidence[:4]), parts=tuple(positions.tolist()))
        else:
            for position, each in zip(positions.tolist(), evidence, strict=True):
                yield Finding(name, Cause("nic", position), (each,))


MIN_PAUSED = 0.01


def victims(view: DiagnosisView) -> Flags:
    """Return the NICs that are paused, beyond their own past, and hardly pause themselves."""
    nic = view.signals.nic
    baseline = np.nan_to_num(view.base(DeviceKind.NIC, "paused_share"))
    return above(nic["paused_share"], MIN_PAUSED + 2 * baseline) & ~above(
        nic["pausing_share"], np.fmax(0.1 * nic["paused_share"], MIN_PAUSING)
    )


# Leaf switches --------------------------------------------------------------------------------

MIN_MEMBERS = 3
MIN_PAUSE_FRAMES = 20.0
MIN_MARKS = 2.0
"""Marks per second of each NIC; with more than this usually, none in half a minute shows a changed setting."""
SIBLING_FACTOR, LEAF_BASELINE_FACTOR = 8.0, 8.0
MIN_OUT_OF_ORDER, MIN_TIMEOUTS = 0.2, 0.02
MIN_LOSSES = 0.2


def faulty_leaves(view: DiagnosisView) -> Iterator[Finding]:
    """Yield faults of leaf switches, by comparison of each leaf with the others and with its past."""
    nic, use = view.signals.nic, loaded_nics(view)
    frames, marks = _means(view, nic["pause_frames"], use), _means(view, nic["marks"], use)
    base = _means(view, view.base(DeviceKind.NIC, "pause_frames"), use)
    usual_marks = _means(view, view.base(DeviceKind.NIC, "marks"), use)
    losses = _means(view, np.fmax(nic["out_of_order"], nic["naks"]), use)
    for leaf, members in enumerate(view.groups.leaves):
        positions = members[use[members]]
        if len(positions) < MIN_MEMBERS:
            continue
        other_leaves = np.delete(np.arange(len(frames)), leaf)
        cause = Cause("leaf", leaf, view.groups.leaf_names[leaf])
        notifies = nic["notifications_sent"][positions]
        usual = np.fmax(
            np.nan_to_num(median_known(frames[other_leaves])) * SIBLING_FACTOR, MIN_PAUSE_FRAMES
        )
        usual = np.fmax(usual, LEAF_BASELINE_FACTOR * np.nan_to_num(base[leaf]))
        no_marks = marks[leaf] == 0 and not np.nan_to_num(notifies).any()
        ended = usual_marks[leaf] > MIN_MARKS or (
            len(other_leaves) >= MIN_MEMBERS and (marks[other_leaves] > MIN_MARKS).all()
        )
        if no_marks and (frames[leaf] > usual or ended) and (marks[other_leaves] > 0).any():
            limit = float(np.nan_to_num(median_known(frames[other_leaves])))
            pause = FindingEvidence(
                "pause_frames", float(frames[leaf]), limit, "other leaves", cause.name
            )
            yield Finding(
                "ecn_inactive",
                cause,
                (
                    pause,
                    FindingEvidence(
                        "marks",
                        0.0,
                        float(np.nanmax(marks[other_leaves])),
                        "other leaves",
                        cause.name,
                    ),
                ),
            )
            continue
        usual_losses = float(np.nan_to_num(median_known(losses[other_leaves])))
        yield from _losses(view, cause, positions, frames, usual_losses)


def _losses(
    view: DiagnosisView, cause: Cause, positions: Positions, frames: Floats, usual: float
) -> Iterator[Finding]:
    """Yield a leaf that loses packets, without pause or with it."""
    nic = view.signals.nic
    order, timeouts = nic["out_of_order"][positions], nic["ack_timeouts"][positions]
    losses = np.fmax(nic["out_of_order"], nic["naks"])
    clean = ~above(nic["discards"], MIN_LOSSES) & ~above(nic["uncorrected_symbols"], 0.0)
    clean &= ~above(nic["unprotected_share"], MIN_UNPROTECTED)
    leaf = cause.position
    other_leaves = np.delete(np.arange(len(frames)), leaf)
    evidence = (
        FindingEvidence("out_of_order", mean_known(order), MIN_OUT_OF_ORDER, "limit", cause.name),
        FindingEvidence("ack_timeouts", mean_known(timeouts), MIN_TIMEOUTS, "limit", cause.name),
    )
    lossy = mean_known(order) > MIN_OUT_OF_ORDER or mean_known(timeouts) > MIN_TIMEOUTS
    if frames[leaf] == 0 and lossy and (frames[other_leaves] > 0).any():
        yield Finding("lossless_broken", cause, evidence)
        return
    hit = above(losses, max(MIN_LOSSES, 4 * usual)) & clean
    affected = positions[hit[positions]]
    if len(affected) >= MIN_MEMBERS and len(affected) >= 0.3 * len(positions):
        rates = tuple(
            FindingEvidence(
                "losses",
                float(losses[p]),
                max(MIN_LOSSES, 4 * usual),
                "other leaves",
                view.nic_name(p),
            )
            for p in affected[:4].tolist()
        )
        yield Finding("leaf_loss", cause, rates, parts=tuple(affected.tolist()))


MIN_UPLINK_MARKED = 0.01
UPLINK_FACTOR = 20.0
MIN_AFFECTED = 0.3
SLOW_SPEED = 0.95


def congested_uplinks(view: DiagnosisView) -> Iterator[Finding]:
    """Yield leaves of which just the NICs of jobs that span pods are paused, or have their packets marked.

    Both directions of an uplink may be congested: then the leaves of the rail in several pods are affected alike, and
    hosts cannot distinguish them.
    """
    groups, hits = view.groups, defaultdict(list)
    crosses, is_slow = _crossing(view)
    paused = victims(view)
    marked = _means(view, view.signals.nic["marked_share"], crosses)
    usual = float(np.nan_to_num(median_known(marked)))
    for leaf, members in enumerate(groups.leaves):
        of_jobs, local = members[crosses[members]], members[~crosses[members]]
        if not len(of_jobs) or paused[local].any():
            continue
        is_marked = is_slow and marked[leaf] > max(MIN_UPLINK_MARKED, UPLINK_FACTOR * usual)
        is_paused = paused[of_jobs].mean() >= MIN_AFFECTED
        if is_paused or is_marked:
            hits[int(groups.nic_rail[members[0]])].append((leaf, is_paused))
    for found in hits.values():
        leaves = [leaf for leaf, _ in found]
        # Marks below one leaf alone may be those of its own queues.
        if len(leaves) > 1 or any(is_paused for _, is_paused in found):
            yield _congested_uplink(view, leaves, crosses, marked, usual)


def paused_leaves(view: DiagnosisView) -> Iterator[Finding]:
    """Yield leaves below which NICs are paused; a symptom, reported only if nothing explains it."""
    paused, shares = victims(view), view.signals.nic["paused_share"]
    for leaf, members in enumerate(view.groups.leaves):
        affected = members[paused[members]]
        if len(affected) >= MIN_MEMBERS:
            evidence = tuple(
                FindingEvidence(
                    "paused_share", float(shares[p]), MIN_PAUSED, "limit", view.nic_name(p)
                )
                for p in affected[:4].tolist()
            )
            cause = Cause("leaf", leaf, view.groups.leaf_names[leaf])
            yield Finding("paused_unlocalised", cause, evidence, parts=tuple(affected.tolist()))


def _crossing(view: DiagnosisView) -> tuple[Flags, bool]:
    """Return the NICs of jobs that span pods, and if one of these jobs is slower than before."""
    crosses, is_slow = np.zeros(len(view.signals.nic), np.bool_), False
    for job in view.jobs:
        if len(np.unique(view.groups.nic_pod[job.nics])) > 1:
            crosses[job.nics] = True
            is_slow |= bool(view.states[job.key].speed < SLOW_SPEED)
    return crosses, is_slow


def _congested_uplink(
    view: DiagnosisView, leaves: list[int], crosses: Flags, marked: Floats, usual: float
) -> Finding:
    names = [view.groups.leaf_names[leaf] for leaf in leaves]
    evidence = tuple(
        FindingEvidence(
            "marked_share", float(marked[leaf]), UPLINK_FACTOR * usual, "other leaves", name
        )
        for leaf, name in zip(leaves, names, strict=True)
    )
    affected = np.flatnonzero(np.isin(view.groups.nic_leaf, leaves) & crosses)
    cause = Cause("leaf", leaves[0], names[0])
    parts = tuple(affected.tolist())
    return Finding("uplink_congested", cause, evidence, parts=parts, alternatives=tuple(leaves[1:]))


def _means(view: DiagnosisView, values: Floats, use: Flags) -> Floats:
    """Return the mean of each leaf's NICs in use; NaN without any."""
    known_values = use & ~np.isnan(values) & (view.groups.nic_leaf >= 0)
    leaf, count = view.groups.nic_leaf[known_values], len(view.groups.leaves)
    sums = np.bincount(leaf, values[known_values], minlength=count).astype(np.float64)
    return divide(sums, np.bincount(leaf, minlength=count).astype(np.float64))
