"""Findings of switches: queues that mark too late, headroom, and the PFC watchdog.

A switch alone makes no NIC or node the cause: its watchdog names a NIC only if that counts pauses as well. Each kind
of finding exists once for a switch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.network_detectors import MIN_PAUSING
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.switch_counters import PartLabel, SwitchQueue, TrackedSender
from railscope_collector.diagnosis.switch_evidence import (
    MAX_NAMED,
    SwitchPort,
)
from railscope_collector.diagnosis.switch_links import SwitchLinks

WATCHDOG_NS = 45 * SECOND_NS
"""Time for which a detected storm is reported: several evaluations must agree."""
MAX_STORMS = 1000
"""Storms between two samples beyond which the counter is invalid: a watchdog needs a tenth of a second for each."""
MARKS_NS = 120 * SECOND_NS
MARKS_SLOTS = findings.slots_of(MARKS_NS)
"""Time over which marks and pauses of a switch are compared."""
MIN_PAUSES = 20.0
"""Pause frames per second that a switch sends, of one priority."""
DEEP_SECONDS = 128e-6
"""Time that a port needs to send its queue, from which on the queue is deep: 400 KB at 25 Gb/s, at which the
recommended thresholds mark every packet.
"""
MIN_DEEP_SHARE, MIN_DEEP_SAMPLES, MIN_PACKETS = 0.5, 4, 1000.0
MARKS_PER_DEEP = 0.1
"""Share of marked packets, relative to the share of samples with a deep queue, below which the queue marks too late."""
MIN_HEADROOM_SHARE = 0.9
"""Share of the headroom from which on the next pause may come too late."""


def switch_findings(view: findings.DiagnosisView, links: SwitchLinks) -> Iterator[findings.Finding]:
    """Yield what switches show by themselves."""
    evidence = links.evidence
    if not evidence.is_used:
        return
    yield from links.find_faults(view)
    leaves = evidence.leaves(view)
    for name, sender in evidence.readings.senders.items():
        if evidence.is_fresh(name, view.timestamp_ns):
            storms = _storms(name, sender, view.timestamp_ns)
            yield from _watchdog(view, links, storms, leaves)
            if name in leaves:
                yield from _late_marks(view, (name, sender), leaves[name])
                yield from _lost_headroom(view, (name, sender), leaves[name])


# PFC watchdog ------------------------------------------------------------------------------------


class _DetectedStorm(NamedTuple):
    queue: SwitchQueue
    storms: float


def _storms(name: str, sender: TrackedSender, now_ns: int) -> list[_DetectedStorm]:
    """Return the queues in which a watchdog detected storms recently, or ended them where the switch counts the ends only."""
    found: dict[SwitchQueue, float] = defaultdict(float)
    for track in sender.tracks():
        for quantity in ("watchdog_storms", "watchdog_restored"):
            positions = track.positions_of(quantity)
            recent = track.recent(now_ns, WATCHDOG_NS, positions) if len(positions) else ()
            for position, count in recent:
                label = track.columns.labels[position]
                is_end = quantity == "watchdog_restored"
                if count <= MAX_STORMS and not (is_end and _counts_storms(sender, label)):
                    queue = SwitchQueue(name, label.port, label.number)
                    found[queue] = max(found[queue], count)
    return [_DetectedStorm(queue, count) for queue, count in sorted(found.items())]


def _counts_storms(sender: TrackedSender, label: PartLabel) -> bool:
    """True if the switch counts the detected storms of a queue, unless it states that it does not."""
    found = sender.find(label._replace(quantity="watchdog_storms"))
    return found is not None and not found[0].is_unsupported(found[1])


def _watchdog(
    view: findings.DiagnosisView,
    links: SwitchLinks,
    storms: list[_DetectedStorm],
    leaves: Mapping[str, int],
) -> Iterator[findings.Finding]:
    """Yield a storm of the NIC at the port, if it counts pauses as well; of the port, if the NIC is unknown.

    A port of a spine is attributed to the leaf at the other end of its link.

    A NIC that counts no pauses contradicts its switch port.
    """
    pausing = view.signals.table(DeviceKind.NIC, findings.SLOTS_PER_MINUTE)["pausing_share"]
    evidence = links.evidence
    unknown: dict[int, list[_DetectedStorm]] = defaultdict(list)
    for storm in storms:
        port: SwitchPort = storm.queue[:2]
        nic = evidence.nic_of(view, port)
        if nic is None or np.isnan(pausing[nic]):
            if (leaf := links.leaf_of(port, leaves)) is not None:
                unknown[leaf].append(storm)
        elif evidence.links[port][0].is_certain and (pausing[nic] > MIN_PAUSING):
            yield findings.Finding(
                "pfc_storm",
                findings.Cause("nic", nic),
                (_storm_evidence(storm),),
                is_confirmed=True,
            )
    for leaf, found in unknown.items():
        name = view.groups.leaf_names[leaf]
        yield findings.Finding(
            "pfc_storm",
            findings.Cause("leaf", leaf, name),
            tuple(map(_storm_evidence, found[:MAX_NAMED])),
            subject=f"watchdog of {name} {found[0].queue.switch}",
            queue=found[0].queue,
        )


def _storm_evidence(storm: _DetectedStorm) -> findings.FindingEvidence:
    slots = findings.slots_of(WATCHDOG_NS)
    return findings.FindingEvidence(
        "watchdog_storms", storm.storms, 0.0, "limit", storm.queue.place, slots=slots
    )


# Thresholds of queues ----------------------------------------------------------------------------


class _LateQueue(NamedTuple):
    """A queue or priority that marks too late: the evidence, its port and number, and the fact in words."""

    evidence: tuple[findings.FindingEvidence, ...]
    queue: SwitchQueue | None
    text: str


def _late_marks(
    view: findings.DiagnosisView, switch: tuple[str, TrackedSender], leaf: int
) -> Iterator[findings.Finding]:
    """Yield a switch whose queues pause senders, or are deep, while they mark hardly any packet."""
    late = _paused_before_marked(*switch, view.timestamp_ns) or _deep_without_marks(
        *switch, view.timestamp_ns
    )
    if late is None:
        return
    yield findings.Finding(
        "ecn_late",
        findings.Cause("leaf", leaf, view.groups.leaf_names[leaf]),
        late.evidence,
        detail=late.text,
        queue=late.queue,
    )


def _sums(
    sender: TrackedSender, quantity: str, from_ns: int
) -> tuple[dict[str, float], float] | None:
    """Return the increase of a quantity by priority or queue over all ports, and the seconds; None if one is unknown."""
    for track in sender.tracks():
        positions = track.positions_of(quantity)
        if len(positions):
            values, seconds = track.within(from_ns, track.newest_ns)
            if not seconds or np.isnan(values[positions]).any():
                return None
            found: dict[str, float] = defaultdict(float)
            for position in positions.tolist():
                found[track.columns.labels[position].number] += float(values[position])
            return found, seconds
    return None


def _paused_before_marked(name: str, sender: TrackedSender, now_ns: int) -> _LateQueue | None:
    """Return a priority of which a switch sends more pause frames than its queues mark packets."""
    sent, marked = (
        _sums(sender, quantity, now_ns - MARKS_NS) for quantity in ("pauses_sent", "marks")
    )
    if sent is None or marked is None:
        return None
    (pauses, pause_seconds), (marks, mark_seconds) = sent, marked
    mark_rates = {number: marks.get(number, np.inf) / mark_seconds for number in pauses}
    found = [
        (count / pause_seconds, number)
        for number, count in pauses.items()
        if count / pause_seconds >= max(MIN_PAUSES, mark_rates[number])
    ]
    if not found:
        return None
    rate, number = max(found)
    mark_rate = mark_rates[number]
    place = f"{name} priority {number}"
    return _LateQueue(
        (
            findings.FindingEvidence(
                "switch_pause_rate", rate, MIN_PAUSES, "limit", place, slots=MARKS_SLOTS
            ),
            findings.FindingEvidence(
                "queue_marks", mark_rate, rate, "pause frames sent", place, slots=MARKS_SLOTS
            ),
        ),
        None,
        f"{name} sends {rate:.0f} pause frames of priority {number} per second, and its queues mark {mark_rate:.0f} packets: "
        "the ECN thresholds are above the PFC threshold",
    )


def _deep_without_marks(name: str, sender: TrackedSender, now_ns: int) -> _LateQueue | None:
    """Return a queue that is deep in most samples, and marks hardly any packet meanwhile."""
    from_ns = now_ns - MARKS_NS
    for track in sender.tracks():
        positions = track.positions_of("occupancy")
        if len(positions):
            highest, _ = track.within(from_ns, track.newest_ns)
            for position in positions[np.argsort(-highest[positions])].tolist():
                label = track.columns.labels[position]
                limit = DEEP_SECONDS * sender.latest(PartLabel("speed", label.port))
                if not highest[position] > limit:
                    break
                depths = track.values_of(position, from_ns)
                share = sum(depth > limit for depth in depths) / max(len(depths), 1)
                queue = SwitchQueue(name, label.port, label.number)
                marked = _marked_share(sender, queue, from_ns)
                if (
                    len(depths) >= MIN_DEEP_SAMPLES
                    and share >= MIN_DEEP_SHARE
                    and marked < MARKS_PER_DEEP * share
                ):
                    return _deep(queue, float(highest[position]), limit, share, marked)
    return None


def _deep(
    queue: SwitchQueue, highest: float, limit: float, share: float, marked: float
) -> _LateQueue:
    place = queue.place
    comparison = f"bytes that the port sends in {DEEP_SECONDS * 1e6:.0f} µs"
    return _LateQueue(
        (
            findings.FindingEvidence(
                "queue_occupancy", highest, limit, comparison, place, slots=MARKS_SLOTS
            ),
            findings.FindingEvidence(
                "queue_marked_share",
                marked,
                share,
                "share of samples with a deep queue",
                place,
                slots=MARKS_SLOTS,
            ),
        ),
        queue,
        f"{place} has up to {highest / 1e6:.2g} MB in {share:.0%} of the samples, and marks {marked:.2%} of its packets: "
        "the ECN thresholds are too high",
    )


def _marked_share(sender: TrackedSender, queue: SwitchQueue, from_ns: int) -> float:
    """Return the share of packets of a queue that it marks; NaN if it is unknown, or for few packets."""
    rates = []
    for quantity in ("marks", "packets"):
        found = sender.find(PartLabel(quantity, queue.port, queue.queue))
        if found is None:
            return np.nan
        values, seconds = found[0].within(from_ns, found[0].newest_ns)
        rates.append(float(values[found[1]]) / seconds if seconds else np.nan)
    return rates[0] / rates[1] if rates[1] >= MIN_PACKETS else np.nan


# Headroom ----------------------------------------------------------------------------------------


def _lost_headroom(
    view: findings.DiagnosisView, switch: tuple[str, TrackedSender], leaf: int
) -> Iterator[findings.Finding]:
    """Yield a switch with a priority group that used nearly all of its headroom, or, with pauses, dropped packets."""
    name, sender = switch
    found = sorted(
        (*_used_headroom(name, sender), *_dropped(name, sender, view.timestamp_ns)),
        key=lambda each: -each.value / max(each.threshold, 1.0),
    )
    if found:
        yield findings.Finding(
            "headroom_low",
            findings.Cause("leaf", leaf, view.groups.leaf_names[leaf]),
            tuple(found[:MAX_NAMED]),
            subject=f"headroom of {name}",
        )


def _used_headroom(name: str, sender: TrackedSender) -> Iterator[findings.FindingEvidence]:
    """Yield the priority groups that use nearly all of their headroom.

    A peak counts for some minutes after it has risen: the switch keeps its value until a person clears it.
    """
    for track in sender.tracks():
        for position in np.append(
            track.positions_of("headroom_share"), track.positions_of("headroom_peak")
        ).tolist():
            label = track.columns.labels[position]
            share = sender.latest(label)
            is_new = label.quantity == "headroom_share" or track.has_risen(position)
            if is_new and MIN_HEADROOM_SHARE < share < np.inf:
                place = f"{name} {label.port} priority group {label.number}"
                yield findings.FindingEvidence(
                    label.quantity, share, MIN_HEADROOM_SHARE, "limit", place, slots=0
                )
        for position in track.positions_of("headroom").tolist():
            label = track.columns.labels[position]
            size = sender.latest(label._replace(quantity="headroom_size"))
            used = sender.latest(label)
            if MIN_HEADROOM_SHARE * size < used < np.inf:
                place = f"{name} {label.port} priority group {label.number}"
                yield findings.FindingEvidence(
                    "headroom_used", used, size, "its headroom", place, slots=0
                )


def _dropped(name: str, sender: TrackedSender, now_ns: int) -> Iterator[findings.FindingEvidence]:
    """Yield the priority groups that dropped packets although they pause their sender: their headroom was full."""
    paused = _pausing_groups(sender, now_ns)
    for track in sender.tracks():
        positions = track.positions_of("group_drops")
        for position, count in track.recent(now_ns, MARKS_NS, positions) if len(positions) else ():
            label = track.columns.labels[position]
            if (label.port, label.number) in paused:
                place = f"{name} {label.port} priority group {label.number}"
                yield findings.FindingEvidence(
                    "headroom_drops", count, 0.0, "limit", place, slots=MARKS_SLOTS
                )


def _pausing_groups(sender: TrackedSender, now_ns: int) -> set[tuple[str, str]]:
    """Return port and number of the priorities that sent pauses recently."""
    found = set()
    for track in sender.tracks():
        positions = track.positions_of("pauses_sent")
        for position, _ in track.recent(now_ns, MARKS_NS, positions) if len(positions) else ():
            label = track.columns.labels[position]
            found.add((label.port, label.number))
    return found
