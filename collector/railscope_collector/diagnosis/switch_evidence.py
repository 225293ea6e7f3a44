"""Evidence of switches: the other end of the link of a NIC, and the queue that causes what hosts see.

What a switch reports changes no class of a finding. It confirms or contradicts the pauses that a NIC counts, and names the
port and queue of a cause that hosts name as a leaf or several of them. A switch without recent samples is unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis import switch_counters as counters
from railscope_collector.diagnosis.findings import (
    NOT_PROVIDED,
    DiagnosisView,
    Finding,
    FindingEvidence,
    slots_of,
)

SwitchPort: TypeAlias = tuple[str, str]

COMPARED_NS, MAX_COMPARED_NS = 60 * SECOND_NS, 180 * SECOND_NS
"""Time over which both ends of a link are compared: at least this, and at most."""
COUNTER_AGE_NS = 10 * SECOND_NS
"""Largest age of a counter when a switch is polled: it reads its own hardware periodically."""
CLOCK_NS = SECOND_NS
"""Uncertainty of a node's clock after the correction of its offset."""
MIN_FRAMES, ALIKE, DIFFERENT = 100, 1.1, 3.0
"""Pause frames, and ratios up to which counts agree and from which on they differ: some devices also count the ends of
pauses.
"""
PAUSING_CLASSES = frozenset(
    {"pfc_storm", "slow_receiver", "pcie_bound_receiver", "host_bound_receiver"}
)
PAUSED_CLASSES = frozenset({"paused_unlocalised", "ecn_inactive"})
_PAUSES = ("pauses_received", "pauses_sent")
MAX_NAMED = 4
"""Links that the evidence of one finding names."""


class LinkedPort(NamedTuple):
    """A switch port and the NIC at the other end; `is_certain` if this is not stated by the switch alone."""

    switch: str
    port: str
    node: str
    interface: str
    is_certain: bool = False
    is_announced: bool = False
    """True if the switch announces this port to the NIC, under this name or another one."""


class ComparedPauses(NamedTuple):
    """Pause frames of a priority that both ends of a link count over the same time.

    `low` and `high` bound those that the NIC counts, as its samples are at other times than those of the switch.
    """

    link: LinkedPort
    nic: int
    is_from_nic: bool
    """True for pauses that the NIC sends and the switch receives."""
    priority: str
    at_switch: float
    low: float
    high: float
    seconds: float
    is_of_all: bool = False
    """True if the switch counts all priorities together."""

    @property
    def agrees(self) -> bool:
        """True if the times of the samples explain the difference."""
        is_within = self.low / ALIKE - MIN_FRAMES <= self.at_switch
        return is_within and self.at_switch <= ALIKE * self.high + MIN_FRAMES

    @property
    def differs(self) -> bool:
        """True if neither the times of the samples nor the way of counting explains the difference."""
        is_more = self.at_switch > DIFFERENT * self.high + MIN_FRAMES
        return is_more or self.low > DIFFERENT * self.at_switch + MIN_FRAMES

    @property
    def place(self) -> str:
        """Switch, port and priority in words."""
        counted = "all priorities" if self.is_of_all else f"priority {self.priority}"
        return f"{self.link.switch} {self.link.port} {counted}"


@dataclass(slots=True)
class SwitchEvidence:
    """Readings of switches with their links, and what follows from them for the findings of hosts."""

    readings: counters.SenderReadings = field(
        default_factory=lambda: counters.SenderReadings(
            counters.SWITCH_QUANTITIES, counters.switch_key
        )
    )
    hosts: counters.SenderReadings = field(
        default_factory=lambda: counters.SenderReadings(
            counters.HOST_QUANTITIES,
            counters.host_key,
            counters.HOST_DISTANCE_NS,
            max_senders=1 << 20,
        )
    )
    """The pauses that nodes with a link to a switch count."""
    links: dict[SwitchPort, tuple[LinkedPort, int]] = field(default_factory=dict)
    """Links by port, with the time since which they are known."""
    compared: Sequence[ComparedPauses] = ()
    """Links with pauses, as of the last evaluation."""
    ports: Mapping[tuple[str, str], SwitchPort] = field(default_factory=dict)
    """Ports by node and interface; other ones are another mapping."""
    announced: frozenset[tuple[str, str]] = frozenset()
    """NICs to which the switch announces their port, under the name in `ports` or another one."""
    _nodes: set[str] = field(default_factory=set)
    _link_list: Sequence[LinkedPort] = ()

    @property
    def is_used(self) -> bool:
        """True if any switch has reported."""
        return bool(self.readings.senders)

    def set_links(self, links: Sequence[LinkedPort], now_ns: int) -> None:
        """Replace the links, unless they are the same list; one that is new, or has another end, begins now."""
        if links is self._link_list:
            return
        self._link_list = links
        found: dict[SwitchPort, tuple[LinkedPort, int]] = {}
        for link in links:
            before, since_ns = self.links.get((link.switch, link.port), (None, now_ns))
            is_same = before is not None and before[:4] == link[:4]
            found[link.switch, link.port] = link, since_ns if is_same else now_ns
        self.links = found
        self.ports = {(each.node, each.interface): port for port, (each, _) in found.items()}
        self.announced = frozenset(
            (each.node, each.interface) for each, _ in found.values() if each.is_announced
        )
        self._nodes = {link.node for link, _ in found.values()}
        for node in self.hosts.senders.keys() - self._nodes:
            del self.hosts.senders[node]

    def follows(self, node: str) -> bool:
        """True if the pauses that a node counts are used."""
        return self.is_used and node in self._nodes

    def is_fresh(self, switch: str, now_ns: int) -> bool:
        """True if a switch has recent samples; another one is unknown."""
        sender = self.readings.senders.get(switch)
        return sender is not None and any(track.is_fresh(now_ns) for track in sender.tracks())

    def switch_names(self) -> dict[str, str]:
        """Return the switches that are read by the names under which they announce themselves, without a domain."""
        senders = self.readings.senders
        announced = {short_name(sender.system_name): name for name, sender in senders.items()}
        return announced | {short_name(name): name for name in senders}

    def nic_of(self, view: DiagnosisView, port: SwitchPort) -> int | None:
        """Return the position of the NIC at a switch port."""
        link, _ = self.links.get(port, (None, 0))
        node = view.devices.nodes.get(link.node) if link else None
        return node.nics.get(link.interface) if link and node else None

    def port_of(self, view: DiagnosisView, nic: int) -> SwitchPort | None:
        """Return the switch port of a NIC."""
        found = view.devices.nics[nic]
        return self.ports.get((found.node, found.interface))

    def leaves(self, view: DiagnosisView) -> dict[str, int]:
        """Return the leaf of most NICs that are linked to each switch."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for port in self.links:
            nic = self.nic_of(view, port)
            if nic is not None and view.groups.nic_leaf[nic] >= 0:
                counts[port[0]][int(view.groups.nic_leaf[nic])] += 1
        return {name: found.most_common(1)[0][0] for name, found in counts.items()}

    def prepare(self, view: DiagnosisView) -> None:
        """Compare the ends of all links for an evaluation."""
        self.compared = list(self._compare(view)) if self.is_used else ()

    def refine(self, view: DiagnosisView, found: list[Finding]) -> list[Finding]:
        """Return findings with the counts of the other ends of links; the same ones without switches."""
        if not self.is_used:
            return found
        by_nic: dict[tuple[int, bool], list[ComparedPauses]] = defaultdict(list)
        for each in self.compared:
            by_nic[each.nic, each.is_from_nic].append(each)
        return [self._confirm(view, each, by_nic) for each in found]

    def _confirm(
        self,
        view: DiagnosisView,
        finding: Finding,
        by_nic: Mapping[tuple[int, bool], Sequence[ComparedPauses]],
    ) -> Finding:
        """Return a finding that rests on pauses with the counts of the other ends of its links, or why they are missing."""
        is_from_nic = finding.incident_class in PAUSING_CLASSES
        if not is_from_nic and finding.incident_class not in PAUSED_CLASSES:
            return finding
        cause = finding.cause
        nics = finding.parts or ((cause.position,) if cause.kind == "nic" else ())
        found = [each for nic in nics for each in by_nic.get((nic, is_from_nic), ())]
        found = [each for each in found if max(each.high, each.at_switch) > MIN_FRAMES]
        if not found:
            missing = self._lacking_pauses(view, nics, is_from_nic=is_from_nic)
            return replace(finding, evidence=finding.evidence + missing)
        found.sort(key=lambda each: (not each.differs, -each.at_switch))
        is_confirmed = None
        if any(each.differs for each in found):
            is_confirmed = False
        elif any(each.agrees for each in found):
            is_confirmed = True
        evidence = tuple(pause_evidence(each) for each in found[:MAX_NAMED])
        return replace(finding, evidence=finding.evidence + evidence, is_confirmed=is_confirmed)

    def _lacking_pauses(
        self, view: DiagnosisView, nics: Sequence[int], *, is_from_nic: bool
    ) -> tuple[FindingEvidence, ...]:
        """Return which switches do not count the pauses of these NICs; one port stands for all of a switch."""
        quantity = "pauses_received" if is_from_nic else "pauses_sent"
        found: dict[str, FindingEvidence] = {}
        for port in filter(None, (self.port_of(view, nic) for nic in nics)):
            is_known = port[0] in found or not self.is_fresh(port[0], view.timestamp_ns)
            sender = self.readings.senders.get(port[0])
            if is_known or sender is None:
                continue
            if sender.lacks(quantity, f"all_{quantity}", port=port[1]):
                found[port[0]] = not_provided(f"switch_{quantity}", " ".join(port))
        return tuple(found.values())[:MAX_NAMED]

    # Both ends of a link -----------------------------------------------------------------------

    def _compare(self, view: DiagnosisView) -> Iterator[ComparedPauses]:
        """Yield the links on which an end has counted pauses, over the same time at both ends."""
        since_ns = view.timestamp_ns - MAX_COMPARED_NS
        candidates: set[tuple[SwitchPort, bool, str]] = set()
        for name, label in self.readings.increasing(since_ns):
            if label.quantity in _PAUSES and (name, label.port) in self.links:
                is_from_nic = label.quantity == "pauses_received"
                candidates.add(((name, label.port), is_from_nic, label.number))
        for node, label in self.hosts.increasing(since_ns):
            port = self.ports.get((node, label.port))
            if port is not None:
                candidates.add((port, label.quantity == "pauses_sent", label.number))
        priorities = Counter((port, is_from_nic) for port, is_from_nic, _ in candidates)
        for port, is_from_nic, priority in sorted(candidates):
            is_alone = priorities[port, is_from_nic] == 1
            compared = self._compare_link(
                view, port, is_from_nic=is_from_nic, priority=priority, is_alone=is_alone
            )
            if compared is not None:
                yield compared

    def _compare_link(
        self,
        view: DiagnosisView,
        port: SwitchPort,
        *,
        is_from_nic: bool,
        priority: str,
        is_alone: bool,
    ) -> ComparedPauses | None:
        """Return the counts of both ends; None while one of them is unknown.

        A switch may count all priorities together: `is_alone` if no other priority of the link has pauses.
        """
        nic, (link, since_ns) = self.nic_of(view, port), self.links[port]
        at_switch, at_nic = _PAUSES if is_from_nic else _PAUSES[::-1]
        switch, host = self.readings.senders.get(link.switch), self.hosts.senders.get(link.node)
        if nic is None or switch is None or host is None:
            return None
        here = switch.find(counters.PartLabel(at_switch, link.port, priority))
        is_of_all = is_alone and (here is None or here[0].is_unsupported(here[1]))
        if is_of_all:
            here = switch.find(counters.PartLabel(f"all_{at_switch}", link.port))
        there = host.find(counters.PartLabel(at_nic, link.interface, priority))
        if here is None or there is None or not here[0].is_fresh(view.timestamp_ns):
            return None
        counts = compare_counts(*here, *there, since_ns)
        if counts is None:
            return None
        return ComparedPauses(link, nic, is_from_nic, priority, *counts, is_of_all=is_of_all)


def short_name(name: str) -> str:
    """Return the name of a device without its domain."""
    return name.partition(".")[0].lower()


def compare_counts(
    track: counters.CounterTrack,
    position: int,
    host: counters.CounterTrack,
    host_position: int,
    since_ns: int,
) -> tuple[float, float, float, float] | None:
    """Return the increase of a counter of a switch, the least and the greatest one of the NIC's, and the seconds.

    None unless both are known over the same time, since the link is the same.
    """
    slack_ns = track.uncertainty_ns + CLOCK_NS
    first_ns = max(int(track.since_ns[position]), since_ns)
    ends = [end for _, end in track.samples if end + slack_ns <= host.last_ns[host_position]]
    for end_ns in ends[: -MAX_NAMED - 1 : -1]:
        starts = [
            start
            for start, _ in track.samples
            if start >= first_ns and COMPARED_NS <= end_ns - start <= MAX_COMPARED_NS
        ]
        if starts:
            start_ns = starts[-1]
            counted = track.bounds(position, (start_ns, start_ns), (end_ns, end_ns))
            bounds = host.bounds(
                host_position,
                (start_ns - slack_ns - COUNTER_AGE_NS, start_ns + slack_ns),
                (end_ns - slack_ns - COUNTER_AGE_NS, end_ns + slack_ns),
            )
            if counted is not None and bounds is not None:
                return counted[0], *bounds, (end_ns - start_ns) / SECOND_NS
    return None


def not_provided(signal: str, place: str) -> FindingEvidence:
    """Return that a switch does not have a value that would support a finding."""
    return FindingEvidence(signal, np.nan, np.nan, NOT_PROVIDED, place, slots=0)


def pause_evidence(compared: ComparedPauses) -> FindingEvidence:
    """Return the counts of both ends of a link."""
    ends = ("received", "sent") if compared.is_from_nic else ("sent", "received")
    return FindingEvidence(
        f"switch_pauses_{ends[0]}",
        compared.at_switch,
        compared.high,
        f"the NIC {ends[1]} in {compared.seconds:.0f} s",
        compared.place,
        slots=slots_of(round(compared.seconds * SECOND_NS)),
    )
