"""Switches: the NICs and switches at the other ends of their ports, and the pauses that both ends of a link count.

Ports and their queues are devices like others. A switch without recent samples is unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from railscope_collector.diagnosis.devices import ClusterDevices, ClusterSwitch, SwitchQueue
from railscope_collector.diagnosis.findings import (
    SLOT_NS,
    Cause,
    DiagnosisView,
    FindingEvidence,
    Flags,
)
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.slot_sums import Floats, Positions, SlotSums, or_zero

SwitchPort: TypeAlias = tuple[str, str]

NIC, PORT, QUEUE = DeviceKind.NIC, DeviceKind.PORT, DeviceKind.QUEUE
WINDOW_SLOTS = 12
"""Slots over which a switch is judged: those of two samples at least, as one burst is harmless."""
KEPT_SLOTS = 35
MIN_FRAMES, ALIKE, DIFFERENT = 100, 1.1, 3.0
"""Pause frames, and ratios up to which both ends agree and from which on they differ: some devices also count the ends of pauses."""
MAX_NAMED = 4


class LinkedPort(NamedTuple):
    """A switch port and the NIC at the other end; `is_certain` if this is not stated by the switch alone."""

    switch: str
    port: str
    node: str
    interface: str
    is_certain: bool = False
    is_announced: bool = False
    """True if the switch announces this port to the NIC, under this name or another one."""


def short_name(name: str) -> str:
    """Return the name of a device without its domain."""
    return name.partition(".")[0].lower()


@dataclass(slots=True)
class SwitchFabric:
    """Links of the ports of all switches, as they are stated, and as LLDP showed them while they were up."""

    links: dict[SwitchPort, tuple[LinkedPort, int]] = field(default_factory=dict)
    """Links to NICs, with the time since which they are known."""
    far_switches: dict[SwitchPort, str] = field(default_factory=dict)
    """Switch at the other end of a port; one that is down keeps it."""
    ports: Mapping[tuple[str, str], SwitchPort] = field(default_factory=dict)
    """Ports by node and interface; other ones are another mapping."""
    announced: frozenset[tuple[str, str]] = frozenset()
    """NICs to which the switch announces their port, under the name in `ports` or another one."""
    seen: dict[tuple[str, object], tuple[int, int]] = field(default_factory=dict)
    """First and last slot of each finding whose queue is searched."""
    layout: Layout | None = None
    _link_list: Sequence[LinkedPort] = ()

    def set_links(self, links: Sequence[LinkedPort], now_ns: int) -> None:
        """Replace the links, unless they are the same list; one that is new, or has another end, begins now."""
        if links is self._link_list:
            return
        self._link_list, before, self.links = links, self.links, {}
        for link in links:
            known, since_ns = before.get((link.switch, link.port), (None, now_ns))
            is_same = known is not None and known[:4] == link[:4]
            self.links[link.switch, link.port] = link, since_ns if is_same else now_ns
        self.ports = {(each.node, each.interface): port for port, (each, _) in self.links.items()}
        of_announced = (each for each, _ in self.links.values() if each.is_announced)
        self.announced = frozenset((each.node, each.interface) for each in of_announced)

    def update(self, devices: ClusterDevices) -> None:
        """Add what the switches receive by LLDP."""
        switches = devices.switches
        names = {short_name(each.system_name): name for name, each in switches.items()}
        names |= {short_name(name): name for name in switches}
        for name, switch in switches.items():
            for port, neighbour in switch.neighbours.items():
                other = names.get(short_name(neighbour), name)
                if other != name:
                    self.far_switches[name, port] = other
                else:
                    self.far_switches.pop((name, port), None)


class Layout(NamedTuple):
    """Where ports and queues are; the same until a link or a device changes."""

    key: tuple[object, ...]
    nic: Positions
    """NIC at the other end of each port, or -1."""
    has_link: Flags
    switch: Positions
    """Number of the switch of each port."""
    port_of_queue: Positions
    numbers: Sequence[str]
    number: Positions
    """Names of the queues of a port, and which one each queue has."""

    @classmethod
    def of(cls, devices: ClusterDevices, fabric: SwitchFabric) -> Layout:
        """Return the last layout, or a new one."""
        key = (fabric.links, len(devices.ports), len(devices.queues), devices.version)
        if fabric.layout and fabric.layout.key[0] is key[0] and fabric.layout.key[1:] == key[1:]:
            return fabric.layout
        ports, queues, switches = devices.ports, devices.queues, devices.switches
        nic = np.full(len(ports), -1, np.intp)
        for (switch, port), (link, _) in fabric.links.items():
            node, known = devices.nodes.get(link.node), switches.get(switch)
            if node and known and port in known.ports:
                nic[known.ports[port]] = node.nics.get(link.interface, -1)
        codes = {name: code for code, name in enumerate(switches)}
        numbers = sorted({each.queue for each in queues})
        of_number = {name: code for code, name in enumerate(numbers)}
        fabric.layout = cls(
            key,
            nic,
            np.array([each[:2] in fabric.links for each in ports], np.bool_),
            np.array([codes[each.switch] for each in ports], np.intp),
            np.array([switches[each.switch].ports[each.port] for each in queues], np.intp),
            numbers,
            np.array([of_number[each.queue] for each in queues], np.intp),
        )
        return fabric.layout


class SwitchView:
    """The ports of all switches at one evaluation: what is at their other ends, and which are known."""

    def __init__(self, view: DiagnosisView, fabric: SwitchFabric) -> None:
        self.view, self.fabric, self.slot = view, fabric, view.signals.slot
        self.ports, self.queues = view.devices.ports, view.devices.queues
        self.switches: Mapping[str, ClusterSwitch] = view.devices.switches
        self.layout = Layout.of(view.devices, fabric)
        self.nic, self.port_of_queue = self.layout.nic, self.layout.port_of_queue
        fresh = np.array([each.is_fresh(self.slot) for each in self.switches.values()], np.bool_)
        self.is_fresh: Flags = fresh[self.layout.switch]
        self.names = list(self.switches)

    def __bool__(self) -> bool:
        """True if any switch has reported."""
        return bool(self.switches)

    @cached_property
    def leaves(self) -> dict[str, int]:
        """The leaf of most NICs that are linked to each switch."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        nodes, nic_leaf = self.view.devices.nodes, self.view.groups.nic_leaf
        for (switch, _), (link, _) in self.fabric.links.items():
            nic = nodes[link.node].nics.get(link.interface) if link.node in nodes else None
            if nic is not None and nic_leaf[nic] >= 0:
                counts[switch][int(nic_leaf[nic])] += 1
        return {name: found.most_common(1)[0][0] for name, found in counts.items()}

    def leaf_of(self, port: SwitchPort | SwitchQueue) -> int | None:
        """Return the leaf of a port: that of its switch, or of the switch at the other end of its link."""
        return self.leaves.get(port[0], self.leaves.get(self.fabric.far_switches.get(port[:2], "")))

    def leaf_cause(self, leaf: int) -> Cause:
        """Return a leaf as a cause."""
        return Cause("leaf", leaf, self.view.groups.leaf_names[leaf])

    def port_name(self, at: int) -> str:
        """Return switch and port in words."""
        return self.ports[at].place

    def queue_name(self, at: int) -> str:
        """Return switch, port and queue in words."""
        return self.queues[at].place

    def port_of(self, nic: int) -> int | None:
        """Return the position of the switch port of a NIC, if its switch is known now."""
        switch, port = self.link_of(nic)
        return self.switches[switch].ports.get(port) if switch else None

    def link_of(self, nic: int) -> SwitchPort:
        """Return the switch port of a NIC; empty names unless its switch is known now."""
        found = self.view.devices.nics[nic]
        port = self.fabric.ports.get((found.node, found.interface), ("", ""))
        switch = self.switches.get(port[0])
        return port if switch and switch.is_fresh(self.slot) else ("", "")

    def sums(self, kind: DeviceKind) -> SlotSums:
        """Return the readings of ports, or of queues."""
        return self.view.devices.sums[kind]

    def signal(
        self, kind: DeviceKind, name: str, slots: int = WINDOW_SLOTS, before: int = 0
    ) -> Floats:
        """Return a signal of ports, or of queues; NaN where it is unknown."""
        return self.view.signals.table(kind, slots, before)[name]

    def steady(self, kind: DeviceKind, name: str, minimum: float) -> Floats:
        """Return rates that are high enough, and that several samples show; 0 for others, NaN unknown."""
        rate = self.signal(kind, name)
        if not (rate >= minimum).any():
            return rate * 0
        increases = (self.view.signals.slots(kind, WINDOW_SLOTS)[name] > 0).sum(axis=0)
        return np.where((rate >= minimum) & (increases > 1), rate, rate * 0)

    # Both ends of a link ------------------------------------------------------------------------

    @cached_property
    def compared(self) -> list[ComparedPauses]:
        """Links with pauses over the same time at both ends."""
        linked = np.flatnonzero((self.nic >= 0) & self.is_fresh)
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for at in linked.tolist():
            switch = self.switches[self.ports[at].switch]
            groups[switch.period, self.slot - switch.last_slot].append(at)
        return [
            each for key, ports in groups.items() for each in self._compare(*key, np.array(ports))
        ]

    def _compare(self, period: int, end: int, ports: Positions) -> Iterator[ComparedPauses]:
        """Yield links of switches with the same sampling."""
        count, nics = 2 * period + 5, self.nic[ports]
        for is_from_nic, name in ((True, "switch_pauses_received"), (False, "switch_pauses_sent")):
            signal = "pause_frames_sent" if is_from_nic else "pause_frames_received"
            at_switch = self.signal(PORT, name, count, end)[ports]
            # A sample counts what happened between the one before and the last refresh of the counter.
            low, high = (
                self.sums(NIC).total(signal, self.slot - end - later, slots)[nics]
                for later, slots in ((period + 1, count - period - 2), (-1, count + period + 2))
            )
            # Not all of the time is known if the counter fell.
            weights = [
                self.sums(PORT).weight(each, self.slot - end, count)[ports]
                for each in (name, "all" + name[6:])
            ]
            known = (np.maximum(*weights) >= 0.95 * 10 * count) & ~np.isnan(low + high)
            for n in np.flatnonzero(known & (np.fmax(at_switch, high) > 0)).tolist():
                at = int(ports[n])
                since_ns = self.fabric.links[self.ports[at][:2]][1]
                if self.view.timestamp_ns - since_ns >= (count + end) * SLOT_NS:
                    numbers = self._numbers(at, "queue" + name[6:], count, end)
                    counts = float(at_switch[n]), float(low[n]), float(high[n])
                    yield ComparedPauses(
                        self.ports[at], int(nics[n]), is_from_nic, numbers, *counts, 10 * count
                    )

    def _numbers(self, at: int, name: str, count: int, before: int) -> tuple[str, ...]:
        """Return the priorities of a port that have pauses."""
        totals = self.sums(QUEUE).total(name, self.slot - before, count)
        return tuple(
            self.queues[q].queue for q in np.flatnonzero((self.port_of_queue == at) & (totals > 0))
        )


class ComparedPauses(NamedTuple):
    """Pause frames that both ends of a link count; `low` and `high` bound those of the NIC, whose samples are at other times."""

    port: SwitchQueue
    nic: int
    is_from_nic: bool
    """True for pauses that the NIC sends and the switch receives."""
    priorities: tuple[str, ...]
    at_switch: float
    low: float
    high: float
    seconds: int

    @property
    def agrees(self) -> bool:
        """True if the times of the samples explain the difference."""
        return self.low / ALIKE - MIN_FRAMES <= self.at_switch <= ALIKE * self.high + MIN_FRAMES

    @property
    def differs(self) -> bool:
        """True if neither the times of the samples nor the way of counting explains the difference."""
        is_more = self.at_switch > DIFFERENT * self.high + MIN_FRAMES
        return is_more or self.low > DIFFERENT * self.at_switch + MIN_FRAMES

    @property
    def ends(self) -> tuple[str, str]:
        """Direction of the pauses at the switch and at the NIC, in words."""
        return ("received", "sent") if self.is_from_nic else ("sent", "received")

    @property
    def place(self) -> str:
        """Switch, port and priority in words."""
        counted = (
            f"priority {self.priorities[0]}" if len(self.priorities) == 1 else "all priorities"
        )
        return f"{self.port.place} {counted}"

    @property
    def evidence(self) -> FindingEvidence:
        """Return the counts of both ends."""
        text = f"the NIC {self.ends[1]} in {self.seconds} s"
        name = f"switch_pauses_{self.ends[0]}"
        return FindingEvidence(
            name, self.at_switch, self.high, text, self.place, slots=self.seconds // 10
        )


def above_zero(values: Floats) -> Flags:
    """Return where values are known and above 0."""
    return or_zero(values) > 0
