"""Faults that no host counts: links between switches that fail, queues that drop packets, and errors of what a NIC sends.

The cause is the leaf, with the port. A fault of a link between switches is that of the leaf at one of its ends; the switches behind the
spines have no NICs, so that links between them have no cause here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.switch_counters import (
    KEPT_NS,
    PartLabel,
    SwitchQueue,
    TrackedSender,
)
from railscope_collector.diagnosis.switch_evidence import (
    MAX_NAMED,
    SwitchEvidence,
    SwitchPort,
    not_provided,
    short_name,
)

WINDOW_NS = 120 * SECOND_NS
WINDOW_SLOTS = findings.slots_of(WINDOW_NS)
"""Time over which errors are counted: those of two samples at least: one burst is harmless."""
MIN_ERRORS = 0.5
"""Errors, or packets that a lossless queue drops, per second."""
FACTOR = 4.0
"""Ratio of the errors of a port to the median of the others that are up and have no known NIC."""
_OF_PEERS = f"{FACTOR:.0f} times the median of the other ports without a NIC"
FORWARDED_SHARE = 0.5
"""Share of the errors of a port that the other ports of the neighbour have: it forwarded packets that it received corrupted."""
MIN_LINKS = 2
"""Links of a switch from which on it is named if all of them are down."""
CORRUPTED = "errors", "fcs_errors"
UNREADABLE = "symbol_errors", "uncorrectable_frames", "uncorrectable_symbols"
"""Quantities of packets that a switch may forward corrupted, and of those that only the link itself explains."""
DROPS = ("drops", "buffer_drops")
UNFELT_CLASSES = frozenset({"switch_link_errors", "switch_link_down"})
"""Classes that switches alone show: they delay no job unless one is slow."""
LOST_ON_LINK = "link_transmit_errors"
"""Class of data that a NIC sends and that its switch port receives corrupted."""
MAX_LINKS = 64
"""Links with a fault of one kind in an evaluation."""


class Uplink(NamedTuple):
    """A port that was up, and the switch at the other end of its link."""

    port: SwitchPort
    other: str


class _PortErrors(NamedTuple):
    """Errors per second of a port by quantity."""

    port: SwitchPort
    rates: Mapping[str, float]

    @property
    def corrupted(self) -> float:
        """Packets received corrupted, whichever counter has more of them."""
        return max(self.rates.get(name, 0.0) for name in CORRUPTED)

    @property
    def unreadable(self) -> float:
        """Errors that the link itself causes."""
        return max(self.rates.get(name, 0.0) for name in UNREADABLE)

    @property
    def worst(self) -> float:
        """The highest rate."""
        return max(self.corrupted, self.unreadable)


@dataclass(slots=True)
class SwitchLinks:
    """Links between switches that are read, as LLDP showed them while they were up."""

    evidence: SwitchEvidence
    far_switches: dict[SwitchPort, str] = field(default_factory=dict)
    """Switch at the other end of each port."""

    def update(self) -> None:
        """Add what the switches receive by LLDP; a port that is down keeps its neighbour."""
        senders = self.evidence.readings.senders
        names = self.evidence.switch_names()
        for name, sender in senders.items():
            for port, neighbour in sender.neighbours.items():
                other = names.get(short_name(neighbour))
                if other is not None and other != name:
                    self.far_switches[name, port] = other
                else:
                    self.far_switches.pop((name, port), None)

    def leaf_of(self, port: SwitchPort, leaves: Mapping[str, int]) -> int | None:
        """Return the leaf of a port: that of its switch, or of the switch at the other end of its link."""
        return leaves.get(port[0], leaves.get(self.far_switches.get(port, "")))

    def find_faults(self, view: findings.DiagnosisView) -> Iterator[findings.Finding]:
        """Yield the faults of links between switches and of ports without a known NIC."""
        if not self.evidence.is_used:
            return
        self.update()
        leaves = self.evidence.leaves(view)
        if leaves:
            yield from self._errors(view, leaves)
            yield from self._outages(view, leaves)
            yield from self._losses(view, leaves)

    def refine(
        self, view: findings.DiagnosisView, found: list[findings.Finding]
    ) -> list[findings.Finding]:
        """Return findings with the errors that the switch port counts; the same ones without switches."""
        if not self.evidence.is_used:
            return found
        return [
            self._with_port_errors(view, each) if each.incident_class == LOST_ON_LINK else each
            for each in found
        ]

    def _with_port_errors(
        self, view: findings.DiagnosisView, finding: findings.Finding
    ) -> findings.Finding:
        """Return data lost on the link of a NIC with the errors of the port, or that the switch counts none."""
        port = self.evidence.port_of(view, finding.cause.position)
        if port is None or not self.evidence.is_fresh(port[0], view.timestamp_ns):
            return finding
        sender = self.evidence.readings.senders[port[0]]
        of_switch = _port_errors(port[0], sender, view.timestamp_ns)
        errors = next((each for each in of_switch if each.port == port), None)
        if errors is not None and errors.worst >= MIN_ERRORS:
            row = _error_evidence(errors, MIN_ERRORS, "limit")
            return replace(
                finding,
                evidence=(*finding.evidence, row),
                is_confirmed=True,
                queue=SwitchQueue(*port),
            )
        if sender.lacks(*CORRUPTED, *UNREADABLE, port=port[1]):
            row = not_provided("port_errors", " ".join(port))
            return replace(finding, evidence=(*finding.evidence, row))
        return finding

    def _fresh(self, view: findings.DiagnosisView) -> Iterator[tuple[str, TrackedSender]]:
        for name, sender in self.evidence.readings.senders.items():
            if self.evidence.is_fresh(name, view.timestamp_ns):
                yield name, sender

    # Errors ------------------------------------------------------------------------------------

    def _errors(
        self, view: findings.DiagnosisView, leaves: Mapping[str, int]
    ) -> Iterator[findings.Finding]:
        """Yield links with errors: one for both ends, and none for packets that were received corrupted elsewhere."""
        of_ports = {
            name: list(_port_errors(name, sender, view.timestamp_ns))
            for name, sender in self._fresh(view)
        }
        peers = [
            each
            for name, found in of_ports.items()
            for each in found
            if self._has_no_nic(each.port) and not self._has(name, each.port[1], "up", 0)
        ]
        rates = np.array([each.worst for each in peers])
        by_link: dict[tuple[str, ...], list[tuple[_PortErrors, float]]] = defaultdict(list)
        for number, each in enumerate(peers):
            if each.worst < MIN_ERRORS or self.leaf_of(each.port, leaves) is None:
                continue
            usual = float(np.median(np.delete(rates, number))) if len(rates) > 1 else 0.0
            if each.worst > FACTOR * usual and not self._is_forwarded(each, of_ports):
                other = self.far_switches.get(each.port)
                link = each.port if other is None else tuple(sorted((each.port[0], other)))
                by_link[link].append((each, usual))
        for link, ends in sorted(by_link.items())[:MAX_LINKS]:
            ends.sort(key=lambda end: -end[0].worst)
            worst = ends[0][0].port
            yield findings.Finding(
                "switch_link_errors",
                _cause(view, next(leaves[name] for name in (*link, worst[0]) if name in leaves)),
                tuple(
                    _error_evidence(each, max(MIN_ERRORS, FACTOR * usual), _OF_PEERS)
                    for each, usual in ends[:MAX_NAMED]
                ),
                subject=f"errors of {' '.join(link)}",
                queue=SwitchQueue(*worst),
            )

    def _has_no_nic(self, port: SwitchPort) -> bool:
        return port not in self.evidence.links

    def _is_forwarded(
        self, errors: _PortErrors, of_ports: Mapping[str, Iterable[_PortErrors]]
    ) -> bool:
        """True if the neighbour received as many corrupted packets at its other ports: cut-through switches forward them."""
        other = self.far_switches.get(errors.port)
        if other is None or errors.unreadable >= MIN_ERRORS:
            return False
        received = sum(
            each.corrupted
            for each in of_ports.get(other, ())
            if self.far_switches.get(each.port) != errors.port[0]
        )
        return received >= FORWARDED_SHARE * errors.corrupted

    # Links that are down -----------------------------------------------------------------------

    def _outages(
        self, view: findings.DiagnosisView, leaves: Mapping[str, int]
    ) -> Iterator[findings.Finding]:
        """Yield leaves, or spines, whose links are down: as one fault if a switch has lost all of its links."""
        links = defaultdict[str, set[Uplink]](set)
        down: set[Uplink] = set()
        for port, other in self.far_switches.items():
            if port[0] in leaves and self.evidence.is_fresh(port[0], view.timestamp_ns):
                link = Uplink(port, other)
                links[port[0]].add(link)
                links[other].add(link)
                if self._is_down(port, other):
                    down.add(link)
        lost = {
            name: each for name, each in links.items() if len(each) >= MIN_LINKS and each <= down
        }
        for name, found in sorted(lost.items(), key=lambda each: (-len(each[1]), each[0])):
            if found <= down:
                down -= found
                yield _outage(view, leaves, f"all links of {name}", found)
        pairs: dict[tuple[str, str], set[Uplink]] = defaultdict(set)
        for link in down:
            pairs[link.port[0], link.other].add(link)
        for (leaf, other), found in sorted(pairs.items())[:MAX_LINKS]:
            yield _outage(view, leaves, f"links of {leaf} to {other}", found)

    def _is_down(self, port: SwitchPort, other: str) -> bool:
        """True if a port is down that is enabled; not if the other switch has a disabled port to this one."""
        if not self._has(*port, "up", 0) or self._has(*port, "enabled", 0):
            return False
        facing = [
            far for far, near in self.far_switches.items() if far[0] == other and near == port[0]
        ]
        return not any(self._has(*far, "enabled", 0) for far in facing)

    def _has(self, switch: str, port: str, quantity: str, value: int) -> bool:
        """True if the last value of a gauge of a port is this one."""
        sender = self.evidence.readings.senders.get(switch)
        return sender is not None and sender.latest(PartLabel(quantity, port)) == value

    # Losses ------------------------------------------------------------------------------------

    def _losses(
        self, view: findings.DiagnosisView, leaves: Mapping[str, int]
    ) -> Iterator[findings.Finding]:
        """Yield leaves with a queue of a priority that pauses, and drops packets, at a port without a known NIC."""
        by_leaf: dict[int, list[tuple[float, SwitchQueue]]] = defaultdict(list)
        for name, sender in self._fresh(view):
            lossless = _paused_priorities(sender, view.timestamp_ns)
            for quantity in DROPS if lossless else ():
                for label, rate in _steady_rates(sender, quantity, view.timestamp_ns):
                    leaf = self.leaf_of((name, label.port), leaves)
                    is_unknown = self._has_no_nic((name, label.port))
                    if leaf is not None and is_unknown and label.number in lossless:
                        by_leaf[leaf].append((rate, SwitchQueue(name, label.port, label.number)))
        for leaf, found in by_leaf.items():
            found.sort(reverse=True)
            yield findings.Finding(
                "leaf_loss",
                _cause(view, leaf),
                tuple(
                    findings.FindingEvidence(
                        "queue_drops",
                        rate,
                        MIN_ERRORS,
                        "limit",
                        queue.place,
                        slots=WINDOW_SLOTS,
                    )
                    for rate, queue in found[:MAX_NAMED]
                ),
                queue=found[0][1],
            )


def _outage(
    view: findings.DiagnosisView, leaves: Mapping[str, int], text: str, found: Iterable[Uplink]
) -> findings.Finding:
    ports = sorted(link.port for link in found)
    return findings.Finding(
        "switch_link_down",
        _cause(view, leaves[ports[0][0]]),
        tuple(
            findings.FindingEvidence(
                "port_up", 0.0, 1.0, "before", " ".join(port), slots=WINDOW_SLOTS
            )
            for port in ports[:MAX_NAMED]
        ),
        detail=f"{text} are down: {', '.join(' '.join(port) for port in ports[:MAX_NAMED])}",
        subject=text,
        affected=tuple(_cause(view, leaf) for leaf in sorted({leaves[name] for name, _ in ports})),
        queue=SwitchQueue(*ports[0]),
    )


def _cause(view: findings.DiagnosisView, leaf: int) -> findings.Cause:
    return findings.Cause("leaf", leaf, view.groups.leaf_names[leaf])


def _port_errors(name: str, sender: TrackedSender, now_ns: int) -> Iterator[_PortErrors]:
    """Yield all ports whose errors are counted, with those that are not a single burst."""
    rates: dict[str, dict[str, float]] = defaultdict(dict)
    for track in sender.tracks():
        for quantity in (*CORRUPTED, *UNREADABLE):
            for position in track.positions_of(quantity).tolist():
                rates[track.columns.labels[position].port][quantity] = 0.0
    for quantity in (*CORRUPTED, *UNREADABLE):
        for label, rate in _steady_rates(sender, quantity, now_ns):
            rates[label.port][quantity] = rate
    for port, of_port in rates.items():
        yield _PortErrors((name, port), of_port)


def _steady_rates(
    sender: TrackedSender, quantity: str, now_ns: int
) -> Iterator[tuple[PartLabel, float]]:
    """Yield the rates of a counter that are high enough, and have increased in several recent samples."""
    from_ns = now_ns - WINDOW_NS
    for track in sender.tracks():
        positions = track.positions_of(quantity)
        for position, count in track.recent(now_ns, WINDOW_NS, positions) if len(positions) else ():
            rate = count / (WINDOW_NS / SECOND_NS)
            increases = sum(each > 0 for each in track.values_of(position, from_ns))
            if rate >= MIN_ERRORS and increases > 1:
                yield track.columns.labels[position], rate


def _paused_priorities(sender: TrackedSender, now_ns: int) -> set[str]:
    """Return the priorities of which a switch has counted pauses recently: they are lossless."""
    found = set()
    for track in sender.tracks():
        for quantity in ("pauses_received", "pauses_sent"):
            positions = track.positions_of(quantity)
            for position, _ in track.recent(now_ns, KEPT_NS, positions) if len(positions) else ():
                found.add(track.columns.labels[position].number)
    return found


def _error_evidence(
    errors: _PortErrors, threshold: float, comparison: str
) -> findings.FindingEvidence:
    quantity = max(errors.rates, key=lambda name: errors.rates[name])
    return findings.FindingEvidence(
        f"port_{quantity}",
        errors.rates[quantity],
        threshold,
        comparison,
        " ".join(errors.port),
        slots=WINDOW_SLOTS,
    )
