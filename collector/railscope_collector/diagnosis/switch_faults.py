"""Faults that switches show: links between switches that fail, queues that drop or mark too late, headroom, the PFC watchdog.

The cause is the leaf, with the port; a fault of a link between switches is that of the leaf at one of its ends. A switch alone makes no
NIC the cause: its watchdog names one only if that counts pauses as well. Each kind of finding exists once for a switch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from railscope_collector.diagnosis.devices import SwitchQueue
from railscope_collector.diagnosis.findings import (
    SLOTS_PER_MINUTE,
    Cause,
    Compared,
    Finding,
    FindingEvidence,
)
from railscope_collector.diagnosis.network_detectors import MIN_PAUSING
from railscope_collector.diagnosis.slot_sums import Floats, median_known, or_zero
from railscope_collector.diagnosis.switch_fabric import (
    KEPT_SLOTS,
    MAX_NAMED,
    NIC,
    PORT,
    QUEUE,
    WINDOW_SLOTS,
    SwitchPort,
    SwitchView,
    above_zero,
)

MIN_ERRORS, FACTOR = 0.5, 4.0
"""Errors, or packets that a lossless queue drops, per second; ratio to the median of the other ports that are up and have no known NIC."""
FORWARDED_SHARE = 0.5
"""Share of the errors of a port that the other ports of its neighbour have: it forwarded packets that it received corrupted."""
CORRUPTED = ("port_errors", "port_fcs_errors")
UNREADABLE = ("port_symbol_errors", "port_uncorrectable_frames", "port_uncorrectable_symbols")
"""Errors of packets that a switch may forward corrupted, and those that only the link itself explains."""
UNFELT_CLASSES = frozenset({"switch_link_errors", "switch_link_down"})
"""Classes that switches alone show: they delay no job unless one is slow."""
MAX_LINKS = 64


def switch_faults(switches: SwitchView) -> Iterator[Finding]:
    """Yield what switches show."""
    if not switches:
        return
    switches.fabric.update(switches.view.devices)
    if switches.leaves:
        yield from _link_errors(switches)
        yield from _outages(switches)
        yield from _losses(switches)
    yield from _storms(switches)
    yield from _late_marks(switches)
    yield from _lost_headroom(switches)


# Links between switches ----------------------------------------------------------------------------


def port_errors(switches: SwitchView) -> dict[str, Floats]:
    """Return the errors per second of all ports that are not a single burst, by signal."""
    return {name: switches.steady(PORT, name, MIN_ERRORS) for name in (*CORRUPTED, *UNREADABLE)}


def worst_errors(errors: Mapping[str, Floats], at: int) -> str:
    """Return the signal of which a port has the most errors."""
    return max(errors, key=lambda name: float(or_zero(errors[name][at])))


def _link_errors(switches: SwitchView) -> Iterator[Finding]:
    """Yield links with errors: one for both ends, and none for packets that were received corrupted elsewhere."""
    errors, ports = port_errors(switches), switches.ports
    corrupted, unreadable = (
        np.fmax.reduce([errors[n] for n in names]) for names in (CORRUPTED, UNREADABLE)
    )
    worst = np.fmax(corrupted, unreadable)
    is_peer = (
        switches.is_fresh
        & ~switches.layout.has_link
        & ~np.isnan(worst)
        & (switches.signal(PORT, "port_up") != 0)
    )
    may_be = np.flatnonzero(is_peer & (worst >= MIN_ERRORS))
    by_link: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for at in may_be.tolist():
        others = is_peer.copy()
        others[at] = False
        limit = max(MIN_ERRORS, FACTOR * float(or_zero(median_known(worst[others]))))
        is_own = unreadable[at] >= MIN_ERRORS or not _is_forwarded(switches, at, or_zero(corrupted))
        if worst[at] >= limit and is_own and switches.leaf_of(ports[at]) is not None:
            other = switches.fabric.far_switches.get(ports[at][:2])
            by_link[tuple(sorted((ports[at].switch, other))) if other else ports[at][:2]].append(
                (at, limit)
            )
    for link, ends in sorted(by_link.items())[:MAX_LINKS]:
        ends.sort(key=lambda end: -worst[end[0]])
        first = ports[ends[0][0]]
        names = [worst_errors(errors, at) for at, _ in ends[:MAX_NAMED]]
        text = f"{FACTOR:.0f} times the median of the other ports without a NIC"
        yield Finding(
            "switch_link_errors",
            switches.leaf_cause(
                next(switches.leaves[n] for n in (*link, first.switch) if n in switches.leaves)
            ),
            tuple(
                e
                for n, (at, limit) in zip(names, ends, strict=False)
                for e in Compared(n, errors[n], limit, text, WINDOW_SLOTS).of(
                    switches.port_name, [at]
                )
            ),
            subject=f"errors of {' '.join(link)}",
            queue=first,
        )


def _is_forwarded(switches: SwitchView, at: int, corrupted: Floats) -> bool:
    """True if the neighbour received as many corrupted packets at its other ports: cut-through switches forward them."""
    far, port = switches.fabric.far_switches, switches.ports[at]
    other = far.get(port[:2])
    of_other = [
        n
        for n, p in enumerate(switches.ports)
        if p.switch == other and far.get(p[:2]) != port.switch
    ]
    return other is not None and float(corrupted[of_other].sum()) >= FORWARDED_SHARE * corrupted[at]


def _outages(switches: SwitchView) -> Iterator[Finding]:
    """Yield leaves, or spines, whose links are down: as one fault if a switch has lost all of its links."""
    links: dict[str, set[tuple[SwitchPort, str]]] = defaultdict(set)
    down = set[tuple[SwitchPort, str]]()
    up, enabled = (
        switches.sums(PORT).latest(name) for name in ("switch_port_up", "switch_port_enabled")
    )

    def state(values: Floats, port: SwitchPort) -> float:
        switch = switches.switches.get(port[0])
        return (
            float(values[switch.ports[port[1]]]) if switch and port[1] in switch.ports else np.nan
        )

    far = switches.fabric.far_switches
    for port, other in far.items():
        if port[0] not in switches.leaves or not switches.switches[port[0]].is_fresh(switches.slot):
            continue
        links[port[0]].add((port, other))
        links[other].add((port, other))
        if state(up, port) != 0:
            continue
        facing = [p for p, near in far.items() if p[0] == other and near == port[0]]
        if all(state(enabled, each) != 0 for each in (port, *facing)):
            down.add((port, other))
    lost = {name: each for name, each in links.items() if len(each) > 1 and each <= down}
    for name, found in sorted(lost.items(), key=lambda each: (-len(each[1]), each[0])):
        if found <= down:
            down -= found
            yield _outage(switches, f"all links of {name}", [port for port, _ in found])
    pairs: dict[tuple[str, str], list[SwitchPort]] = defaultdict(list)
    for port, other in down:
        pairs[port[0], other].append(port)
    for (leaf, other), ports in sorted(pairs.items())[:MAX_LINKS]:
        yield _outage(switches, f"links of {leaf} to {other}", ports)


def _outage(switches: SwitchView, text: str, found: Iterable[SwitchPort]) -> Finding:
    ports = [SwitchQueue(*port) for port in sorted(found)]
    leaves = sorted({switches.leaves[port.switch] for port in ports})
    return Finding(
        "switch_link_down",
        switches.leaf_cause(switches.leaves[ports[0].switch]),
        Compared("port_up", 0.0, 1.0, "before", WINDOW_SLOTS).of(
            lambda number: ports[number].place, range(len(ports))
        ),
        detail=f"{text} are down: {', '.join(port.place for port in ports[:MAX_NAMED])}",
        subject=text,
        affected=tuple(switches.leaf_cause(leaf) for leaf in leaves),
        queue=ports[0],
    )


# Queues --------------------------------------------------------------------------------------------


def _losses(switches: SwitchView) -> Iterator[Finding]:
    """Yield leaves with a queue of a priority that pauses, and drops packets, at a port without a known NIC."""
    drops = np.fmax(
        *(
            switches.steady(QUEUE, name, MIN_ERRORS)
            for name in ("queue_drops", "queue_buffer_drops")
        )
    )
    hit = (switches.is_fresh & ~switches.layout.has_link)[switches.port_of_queue] & (
        or_zero(drops) >= MIN_ERRORS
    )
    if not hit.any():
        return
    pauses = np.fmax(
        *(
            switches.signal(QUEUE, name, KEPT_SLOTS)
            for name in ("queue_pauses_received", "switch_pause_rate")
        )
    )
    lossless = {
        (switches.queues[at].switch, switches.queues[at].queue)
        for at in np.flatnonzero(above_zero(pauses))
    }
    by_leaf: dict[int, list[int]] = defaultdict(list)
    for at in np.flatnonzero(hit).tolist():
        queue, leaf = switches.queues[at], switches.leaf_of(switches.queues[at])
        if leaf is not None and (queue.switch, queue.queue) in lossless:
            by_leaf[leaf].append(at)
    for leaf, found in by_leaf.items():
        found.sort(key=lambda at: -drops[at])
        dropped = Compared("queue_drops", drops, MIN_ERRORS, slots=WINDOW_SLOTS)
        evidence = dropped.of(switches.queue_name, found)
        yield Finding(
            "leaf_loss", switches.leaf_cause(leaf), evidence, queue=switches.queues[found[0]]
        )


MAX_STORMS = 1000
"""Storms between two samples beyond which the counter is invalid: a watchdog needs a tenth of a second for each."""


def _storms(switches: SwitchView) -> Iterator[Finding]:
    """Yield a storm of the NIC at the port, if it counts pauses as well; of the port, if the NIC is unknown."""
    storms = switches.signal(QUEUE, "watchdog_storms", 5)
    hit = (or_zero(storms) > 0) & ~(storms > MAX_STORMS) & switches.is_fresh[switches.port_of_queue]
    pausing = switches.view.signals.table(NIC, SLOTS_PER_MINUTE)["pausing_share"]
    unknown: dict[int, list[int]] = defaultdict(list)
    compared = Compared("watchdog_storms", storms, 0.0, slots=5)
    for at in np.flatnonzero(hit).tolist():
        queue, nic = switches.queues[at], int(switches.nic[switches.port_of_queue[at]])
        evidence = compared.of(switches.queue_name, [at])
        if nic < 0 or np.isnan(pausing[nic]):
            if (leaf := switches.leaf_of(queue)) is not None:
                unknown[leaf].append(at)
        elif switches.fabric.links[queue[:2]][0].is_certain and pausing[nic] > MIN_PAUSING:
            yield Finding("pfc_storm", Cause("nic", nic), evidence, is_confirmed=True)
    for leaf, found in unknown.items():
        cause, queue = switches.leaf_cause(leaf), switches.queues[found[0]]
        evidence = compared.of(switches.queue_name, found)
        yield Finding(
            "pfc_storm",
            cause,
            evidence,
            subject=f"watchdog of {cause.name} {queue.switch}",
            queue=queue,
        )


# Thresholds of queues ------------------------------------------------------------------------------

MIN_PAUSES = 20.0
"""Pause frames per second that a switch sends, of one priority."""
MARKS_PER_DEEP = 0.1
"""Share of marked packets, relative to the share of samples with a deep queue, below which the queue marks too late."""
MIN_DEPTHS, MIN_DEEP_SHARE = 4, 0.5
MIN_PACKETS, DEEP_SECONDS = 1000, 128e-6
"""Packets per second; time that a port needs to send its queue, from which on the queue is deep: 400 KB at 25 Gb/s, at which the
recommended thresholds mark every packet.
"""


def _late_marks(switches: SwitchView) -> Iterator[Finding]:
    """Yield switches whose queues pause senders, or are deep, while they mark hardly any packet."""
    found = _deep_without_marks(switches) | _paused_before_marked(switches)
    for name, (evidence, queue, text) in found.items():
        if name not in switches.leaves or not switches.switches[name].is_fresh(switches.slot):
            continue
        cause = switches.leaf_cause(switches.leaves[name])
        yield Finding("ecn_late", cause, evidence, detail=text, queue=queue)


_Late: TypeAlias = dict[str, tuple[tuple[FindingEvidence, ...], SwitchQueue | None, str]]
"""By switch."""


def _paused_before_marked(switches: SwitchView) -> _Late:
    """Return the priorities of which a switch sends more pause frames than its queues mark packets."""
    layout, count = switches.layout, len(switches.names)
    shape = count, max(len(layout.numbers), 1)
    cell = np.ravel_multi_index((layout.switch[layout.port_of_queue], layout.number), shape)

    rates, marks = (switches.signal(QUEUE, name) for name in ("switch_pause_rate", "queue_marks"))
    rate, marked = (
        np.bincount(cell, or_zero(each), shape[0] * shape[1]) for each in (rates, marks)
    )
    is_known = np.bincount(cell[~np.isnan(marks)], minlength=len(rate)) > 0
    found: _Late = {}
    for at in np.flatnonzero(is_known & (rate >= np.maximum(MIN_PAUSES, marked))).tolist():
        name, number = switches.names[at // shape[1]], layout.numbers[at % shape[1]]
        if name in found and found[name][0][0].value >= rate[at]:
            continue
        values, place = (float(rate[at]), float(marked[at])), f"{name} priority {number}"
        text = (
            f"{name} sends {values[0]:.0f} pause frames of priority {number} per second, and its queues mark "
            f"{values[1]:.0f} packets: the ECN thresholds are above the PFC threshold"
        )
        evidence = (
            FindingEvidence(
                "switch_pause_rate", values[0], MIN_PAUSES, "limit", place, slots=WINDOW_SLOTS
            ),
            FindingEvidence(
                "queue_marks", values[1], values[0], "pause frames sent", place, slots=WINDOW_SLOTS
            ),
        )
        found[name] = evidence, None, text
    return found


def _deep_without_marks(switches: SwitchView) -> _Late:
    """Return the queues that are deep in most samples, and mark hardly any packet meanwhile."""
    depths = switches.view.signals.slots(QUEUE, WINDOW_SLOTS)["queue_occupancy"]
    limit = DEEP_SECONDS * switches.sums(PORT).latest("switch_port_speed")[switches.port_of_queue]
    known = (~np.isnan(depths)).sum(axis=0)
    share = (depths > limit).sum(axis=0) / np.maximum(known, 1)
    is_busy = switches.signal(QUEUE, "queue_packets") >= MIN_PACKETS
    marked = np.where(is_busy, switches.signal(QUEUE, "queue_marked_share"), np.nan)
    is_late = (known >= MIN_DEPTHS) & (share >= MIN_DEEP_SHARE) & (marked < MARKS_PER_DEEP * share)
    highest, found = np.fmax.reduce(depths, axis=0), _Late()
    for at in sorted(np.flatnonzero(is_late).tolist(), key=lambda each: highest[each]):
        queue = switches.queues[at]
        text, samples = (
            f"bytes that the port sends in {DEEP_SECONDS * 1e6:.0f} µs",
            "share of samples with a deep queue",
        )
        evidence = (
            *Compared("queue_occupancy", highest, limit, text, WINDOW_SLOTS).of(
                switches.queue_name, [at]
            ),
            *Compared("queue_marked_share", marked, share, samples, WINDOW_SLOTS).of(
                switches.queue_name, [at]
            ),
        )
        found[queue.switch] = (
            evidence,
            queue,
            (
                f"{queue.place} has up to {highest[at] / 1e6:.2g} MB in {share[at]:.0%} of the samples, and marks "
                f"{marked[at]:.2%} of its packets: the ECN thresholds are too high"
            ),
        )
    return found


MIN_HEADROOM_SHARE = 0.9
"""Share of the headroom from which on the next pause may come too late."""


def _lost_headroom(switches: SwitchView) -> Iterator[Finding]:
    """Yield switches with a priority group that used nearly all of its headroom, or, with pauses, dropped packets."""
    sums, found = switches.sums(QUEUE), defaultdict[str, list[FindingEvidence]](list)

    def group_name(at: int) -> str:
        queue = switches.queues[at]
        return f"{queue.switch} {queue.port} priority group {queue.queue}"

    used, size, share, peak = (
        sums.latest(f"headroom_{each}") for each in ("used", "size", "share", "peak")
    )
    # A peak counts while it has risen: the switch keeps its value until a person clears it.
    has_risen = peak > np.fmin.reduce(
        sums.history("headroom_peak", switches.slot, KEPT_SLOTS), axis=0
    )
    pauses = above_zero(switches.signal(QUEUE, "switch_pause_rate"))
    drops = switches.signal(QUEUE, "headroom_drops")
    least = MIN_HEADROOM_SHARE
    for compared, hit in (
        (Compared("headroom_share", share, least, slots=0), share > least),
        (Compared("headroom_peak", peak, least, slots=0), has_risen & (peak > least)),
        (Compared("headroom_used", used, size, "its headroom", 0), used > least * size),
        (Compared("headroom_drops", drops, 0.0, slots=WINDOW_SLOTS), above_zero(drops) & pauses),
    ):
        for at in np.flatnonzero(hit).tolist():
            found[switches.queues[at].switch] += compared.of(group_name, [at])
    for name, rows in found.items():
        if name in switches.leaves and switches.switches[name].is_fresh(switches.slot):
            rows.sort(key=lambda each: -each.value / max(each.threshold, 1.0))
            cause = switches.leaf_cause(switches.leaves[name])
            yield Finding(
                "headroom_low",
                cause,
                tuple(rows[:MAX_NAMED]),
                subject=f"headroom of {name}",
            )
