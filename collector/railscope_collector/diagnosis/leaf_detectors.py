"""Detectors of leaf switches, by comparison of all NICs below each of them with those of the others and with their past.

A leaf switch reports nothing itself: marks, pause and losses of its NICs show its settings, its queues and its uplinks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.network_detectors import loaded_nics, victims
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


def faulty_leaves(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield faults of leaf switches, by comparison of each leaf with the others and with its past."""
    thresholds = view.thresholds.leaves
    nic, use = view.signals.nic, loaded_nics(view)
    if np.bincount(view.groups.nic_leaf[use] + 1)[1:].max(initial=0) < MIN_MEMBERS:
        return
    frames, marks = _means(view, nic["pause_frames"], use), _means(view, nic["marks"], use)
    base = _means(view, view.base(DeviceKind.NIC, "pause_frames"), use)
    usual_marks = _means(view, view.base(DeviceKind.NIC, "marks"), use)
    loads = _means(view, nic["receive"], use)
    usual_loads = _means(view, view.base(DeviceKind.NIC, "receive"), use)
    nic_losses = _NicLosses.read(view)
    losses = _means(view, nic_losses.rates, use)
    paused = _means(view, nic["paused_share"], use)
    lossy: dict[int, findings.Finding] = {}
    exchange = _exchanging_leaves(view) if (losses > 0).any() else None
    for leaf, members in enumerate(view.groups.leaves):
        positions = members[use[members]]
        if len(positions) < MIN_MEMBERS:
            continue
        other_leaves = np.delete(np.arange(len(frames)), leaf)
        cause = findings.Cause("leaf", leaf, view.groups.leaf_names[leaf])
        notifies = nic["notifications_sent"][positions]
        usual = np.fmax(
            or_zero(median_known(frames[other_leaves])) * thresholds.pause_factor,
            thresholds.min_pause_frames,
        )
        usual = np.fmax(usual, thresholds.pause_factor * or_zero(base[leaf]))
        no_marks = marks[leaf] == 0 and not or_zero(notifies).any()
        # Fewer packets have fewer marks: only at the usual load does their end show a changed setting.
        ended = (
            usual_marks[leaf] > thresholds.min_marks
            and loads[leaf] > thresholds.usual_load * usual_loads[leaf]
        ) or (
            len(other_leaves) >= MIN_MEMBERS and (marks[other_leaves] > thresholds.min_marks).all()
        )
        if no_marks and (frames[leaf] > usual or ended) and (marks[other_leaves] > 0).any():
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
        compared = nic_losses._replace(usual=np.fmax(usual_losses, nic_losses.usual))
        for found in _losses(view, cause, positions, paused, compared):
            if found.incident_class == "leaf_loss":
                lossy[leaf] = found
            else:
                yield found
    if exchange is not None:
        yield from _origins(view, lossy, losses, exchange)


def _origins(
    view: findings.DiagnosisView,
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
        share = view.thresholds.leaves.joined_losses
        if all(losses[leaf] >= share * losses[other] for other in joined):
            alike = tuple(other for other in joined if share * losses[leaf] <= losses[other])
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


class _NicLosses(NamedTuple):
    """Missing packets per second of each NIC, those that are usual, and True where the NIC itself has not lost them."""

    rates: Floats
    usual: Floats
    clean: findings.Flags

    @classmethod
    def read(cls, view: findings.DiagnosisView) -> Self:
        """Return those of all NICs, compared with their past."""
        nic, min_losses = view.signals.nic, view.thresholds.leaves.min_losses
        clean = ~findings.above(nic["discards"], min_losses)
        clean &= ~findings.above(nic["uncorrected_symbols"], 0.0)
        clean &= ~findings.above(nic["unprotected_share"], view.thresholds.network.min_unprotected)
        names = ("out_of_order", "naks")
        past = (or_zero(view.base(DeviceKind.NIC, name)) for name in names)
        return cls(np.fmax(*(nic[name] for name in names)), np.fmax(*past), clean)


def _losses(
    view: findings.DiagnosisView,
    cause: findings.Cause,
    positions: Positions,
    paused: Floats,
    losses: _NicLosses,
) -> Iterator[findings.Finding]:
    """Yield a leaf that loses packets, and pauses none of its NICs, or some as others do."""
    thresholds = view.thresholds.leaves
    nic = view.signals.nic
    order, timeouts = nic["out_of_order"][positions], nic["ack_timeouts"][positions]
    leaf = cause.position
    other_leaves = np.delete(np.arange(len(paused)), leaf)
    evidence = (
        findings.FindingEvidence(
            "out_of_order", mean_known(order), thresholds.min_out_of_order, "limit", cause.name
        ),
        findings.FindingEvidence(
            "ack_timeouts", mean_known(timeouts), thresholds.min_timeouts, "limit", cause.name
        ),
    )
    limits = np.fmax(thresholds.min_losses, thresholds.loss_factor * losses.usual[positions])
    lossy = mean_known(order) > float(limits.mean())
    lossy |= mean_known(timeouts) > thresholds.min_timeouts
    if paused[leaf] == 0 and lossy and (paused[other_leaves] > 0).any():
        yield findings.Finding("lossless_broken", cause, evidence)
        return
    rates = losses.rates[positions]
    hit = findings.above(rates, limits) & losses.clean[positions]
    affected = positions[hit]
    if (
        len(affected) >= MIN_MEMBERS
        and len(affected) >= thresholds.loss_share * len(positions)
        and _lasts(view, affected)
        and _is_lost(view, affected)
        and not _has_one_sender(view, affected)
    ):
        of_nics = tuple(
            findings.FindingEvidence(
                "losses",
                float(rate),
                float(limit),
                "other leaves and baseline",
                view.nic_name(p),
                slots=LOSS_SLOTS,
            )
            for p, rate, limit in zip(affected[:4].tolist(), rates[hit], limits[hit], strict=False)
        )
        yield findings.Finding("leaf_loss", cause, of_nics, parts=tuple(affected.tolist()))


def _lasts(view: findings.DiagnosisView, affected: Positions) -> bool:
    """True if most NICs lose packets in several slots of two minutes: overlapping windows show one burst several times."""
    slots = view.signals.slots(DeviceKind.NIC, LOSS_SLOTS)
    losses = np.fmax(slots["out_of_order"], slots["naks"])[:, affected]
    return bool(np.median(findings.above(losses, 0.0).sum(axis=0)) > 1)


def _is_lost(view: findings.DiagnosisView, affected: Positions) -> bool:
    """True unless packets are out of order and hardly any is reported missing, as where switches spray them."""
    nic, rails = view.signals.nic, view.groups.nic_rail
    of_rails = np.isin(rails, rails[affected])
    naks = nic["naks"][of_rails]
    if np.isnan(naks).all():
        return True
    reordered = float(np.nansum(nic["out_of_order"][of_rails]))
    return float(np.nansum(naks)) >= view.thresholds.leaves.min_reported * reordered


def _has_one_sender(view: findings.DiagnosisView, affected: Positions) -> bool:
    """True if the receivers report nearly all missing packets to one NIC: its link corrupts them, not the switch."""
    rails, naks = view.groups.nic_rail, view.signals.nic["naks"]
    senders = np.isin(rails, rails[affected]) & loaded_nics(view) & ~np.isnan(naks)
    reports = naks[senders]
    share = view.thresholds.leaves.sender_share
    return len(reports) > MIN_MEMBERS and bool(reports.max() > share * reports.sum())


MIN_SLOW_SLOTS = 4
"""Evaluations of a minute whose mean speed must be lower: marks may last longer than what slows a job."""


def congested_uplinks(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield leaves of which just the NICs of jobs that span pods are paused, or have their packets marked.

    Both directions of an uplink may be congested: then the leaves of the rail in several pods are affected alike, and
    hosts cannot distinguish them. Of a ring, one flow in each direction crosses the uplinks: one NIC has its packets marked, the other
    end, below another leaf, is paused. While no job that spans pods is slower, this is of severity `info`, if their past is known:
    permanent marks and pauses are usual.
    """
    thresholds = view.thresholds.leaves
    groups, paused = view.groups, victims(view)
    crosses, is_slow = _crossing(view)
    has_past = ~np.isnan(view.base(DeviceKind.NIC, "paused_share"))
    marked = _means(view, view.signals.nic["marked_share"], crosses)
    usual = float(or_zero(median_known(marked)))
    limit = max(thresholds.min_uplink_marked, thresholds.uplink_factor * usual)
    hits, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    has_paused = set[int]()
    flows = _marked_flows(view, crosses)
    for leaf, members in enumerate(groups.leaves):
        of_jobs, local = members[crosses[members]], members[~crosses[members]]
        if not len(of_jobs) or paused[local].any():
            continue
        rail = int(groups.nic_rail[members[0]])
        is_paused = paused[of_jobs].mean() >= thresholds.uplink_paused
        if is_paused or marked[leaf] > limit:
            hits[rail].append(leaf)
            has_paused.update([rail] if is_paused else [])
        if flows[of_jobs].any() or paused[of_jobs].any():
            ends[rail].append(leaf)
    for rail in hits.keys() | ends.keys():
        leaves = hits[rail]
        # Marks below one leaf alone may be those of its own queues.
        if len(leaves) > 1 or rail in has_paused:
            found = _congested_uplink(view, leaves, crosses, limit)
        elif len(ends[rail]) > 1 and flows[np.isin(groups.nic_leaf, ends[rail])].any():
            affected = flows | (paused & crosses)
            found = _congested_uplink(view, ends[rail], affected, thresholds.min_uplink_marked)
        else:
            continue
        affected_nics = np.array(found.parts, np.intp)
        if is_slow[affected_nics].any():
            yield found
        elif has_past[affected_nics].mean() > view.thresholds.jobs.majority:
            yield replace(found, severity="info")


def _marked_flows(view: findings.DiagnosisView, crosses: findings.Flags) -> findings.Flags:
    """Return the NICs of jobs that span pods of which many packets are marked, although they receive no more than before."""
    thresholds, nic = view.thresholds.leaves, view.signals.nic
    past = view.base(DeviceKind.NIC, "marked_share")
    limit = np.fmax(thresholds.min_uplink_marked, thresholds.flow_marks_factor * past)
    usual = view.base(DeviceKind.NIC, "receive")
    receives_more = nic["receive"] > thresholds.flow_receive_factor * usual
    pauses = findings.above(nic["pausing_share"], view.thresholds.network.min_pausing)
    return crosses & findings.above(nic["marked_share"], limit) & ~receives_more & ~pauses


def paused_leaves(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield leaves below which NICs are paused; a symptom, reported only if nothing explains it."""
    paused, shares = victims(view), view.signals.nic["paused_share"]
    for leaf, members in enumerate(view.groups.leaves):
        affected = members[paused[members]]
        if len(affected) >= MIN_MEMBERS:
            evidence = tuple(
                findings.FindingEvidence(
                    "paused_share",
                    float(shares[p]),
                    view.thresholds.network.min_paused,
                    "limit",
                    view.nic_name(p),
                )
                for p in affected[:4].tolist()
            )
            cause = findings.Cause("leaf", leaf, view.groups.leaf_names[leaf])
            yield findings.Finding(
                "paused_unlocalised", cause, evidence, parts=tuple(affected.tolist())
            )


def _crossing(view: findings.DiagnosisView) -> tuple[findings.Flags, findings.Flags]:
    """Return the NICs of jobs that span pods, and those of them whose job is slower than before."""
    crosses, is_slow = (np.zeros(len(view.signals.nic), np.bool_) for _ in range(2))
    for job in view.jobs:
        if len(np.unique(view.groups.nic_pod[job.nics])) > 1:
            crosses[job.nics] = True
            state = view.states[job.key]
            # Ranks that wait for the network spin; those of a checkpoint have gaps.
            spins = not state.utilization_change < view.thresholds.steps.min_busy_use
            speeds = np.array(state.history.speeds[-findings.SLOTS_PER_MINUTE :])
            slow_count = np.sum(speeds < view.thresholds.leaves.uplink_speed)
            is_slow[job.nics] = spins and slow_count >= MIN_SLOW_SLOTS
    return crosses, is_slow


def _congested_uplink(
    view: findings.DiagnosisView, leaves: list[int], affected: findings.Flags, limit: float
) -> findings.Finding:
    """Return the congestion of uplinks, with the NIC of each leaf of which most packets are marked, or that is paused most."""
    nic, min_paused = view.signals.nic, view.thresholds.network.min_paused
    names = [view.groups.leaf_names[leaf] for leaf in leaves]
    parts = np.flatnonzero(np.isin(view.groups.nic_leaf, leaves) & affected)
    evidence = []
    for leaf, name in zip(leaves, names, strict=True):
        of_leaf = parts[view.groups.nic_leaf[parts] == leaf]
        marked, paused = (
            float(or_zero(nic[signal][of_leaf]).max())
            for signal in ("marked_share", "paused_share")
        )
        shown = (
            ("marked_share", marked, limit, "other leaves")
            if marked > limit
            else ("paused_share", paused, min_paused, "limit")
        )
        evidence.append(findings.FindingEvidence(*shown, name))
    rail = view.devices.nics[int(view.groups.leaves[leaves[0]][0])].rail
    return findings.Finding(
        "uplink_congested",
        findings.Cause("leaf", leaves[0], names[0]),
        tuple(evidence),
        parts=tuple(parts.tolist()),
        alternatives=tuple(leaves[1:]),
        subject=f"uplinks of rail {rail}",
    )


def _means(view: findings.DiagnosisView, values: Floats, use: findings.Flags) -> Floats:
    """Return the mean of each leaf's NICs in use; NaN without any."""
    known_values = use & ~np.isnan(values) & (view.groups.nic_leaf >= 0)
    leaf, count = view.groups.nic_leaf[known_values], len(view.groups.leaves)
    sums = np.bincount(leaf, values[known_values], minlength=count).astype(np.float64)
    return divide(sums, np.bincount(leaf, minlength=count).astype(np.float64))
