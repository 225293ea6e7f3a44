"""Burst sampling of NICs: traffic, pause and notifications of each short window.

Each sample reads one ethtool answer and two counter files per NIC, on the source's own thread; the
histograms are reported once per second. Drivers count effects of the switch on this node as
received, effects of this node as sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from agent.host import Host
from agent.sampling.bursts import MAX_WINDOWS
from agent.sampling.facts import counted, names
from agent.sampling.source import Columns, Finding, Inventory, Table, Verdict
from agent.sources.burst_port import Kept, Port, plan
from agent.topology.network import Wiring
from agent.topology.rules import BRIDGE, VIRTUAL_FUNCTION
from railscope.catalog import bursts as c
from railscope.catalog.entities import NIC
from railscope.entity import Entity
from railscope.frame import Column

NS = 1_000_000_000
_NS_PER_MS = 1_000_000
_NET = "/sys/class/net"
_OTHERS = frozenset({BRIDGE, VIRTUAL_FUNCTION})
"""RDMA devices without their own port: a virtual function's counters are those of its physical one."""


class NicBurst:
    """Windows of every NIC that carries RDMA, or of the configured interfaces."""

    name = "nic_burst"
    family = "nic_burst"

    def __init__(
        self,
        window_seconds: float = 0.1,
        interfaces: Sequence[str] = (),
        wiring: Wiring | None = None,
    ) -> None:
        self.period_seconds = window_seconds
        # Samples later than MAX_WINDOWS carry no information: half of that tolerates late ones.
        self.longest_period_seconds = window_seconds * MAX_WINDOWS / 2
        self._wiring = wiring or Wiring()
        self._window_ns = round(window_seconds * NS)
        self._interfaces = tuple(interfaces)
        self._ports: dict[str, Port] = {}
        self._kept: dict[str, Kept] = {}
        self._columns: list[tuple[Port, int]] = []
        self._told_ns = 0

    def probe(self, host: Host) -> Inventory:
        """Select the NICs. An unchanged NIC continues with its state."""
        network = self._wiring.look(host)
        cards = {
            name: device.rdma[0]
            for device in network.devices
            if device.rdma and device.role not in _OTHERS
            for name in (device.address, *device.interfaces)
        }
        found: dict[str, Port] = {}
        for interface in names(host, _NET):
            planned = plan(host, interface, cards)
            if planned is None or not self._wanted(interface, planned.device):
                continue
            before = self._ports.pop(interface, None)
            if before is None or before.planned != planned:
                if before:
                    before.close()
                kept = self._kept.setdefault(interface, Kept())
                before = Port(host, planned, self._window_ns, kept)
            found[interface] = before
        self.close()
        self._ports = found
        self._told_ns = 0
        return Inventory(self._place(), (), (self._finding(),))

    def _wanted(self, interface: str, device: str) -> bool:
        if self._interfaces:
            return any(fnmatchcase(interface, pattern) for pattern in self._interfaces)
        return bool(device)

    def _place(self) -> tuple[Column, ...]:
        columns = Columns()
        self._columns = []
        for interface, port in self._ports.items():
            card = Entity(NIC, (interface,))
            first = columns.add(c.NIC_WINDOW_LENGTH, card)
            columns.add(c.NIC_MISSED, card)
            for windows in port.windows.values():
                windows.add_columns(columns)
            self._columns.append((port, first))
        return tuple(columns.columns)

    def read(self, host: Host, into: Table) -> None:
        """Sample every NIC; once per second, report the windows."""
        for port in self._ports.values():
            into.grown |= port.look(host)
        now_ns = host.clock.now().boot_ns
        if now_ns // NS == self._told_ns // NS:
            into.kept_back = True
            return
        self._told_ns = now_ns
        for port, first in self._columns:
            into.put_all(first, (port.window_ns, port.kept.unseen))
            for windows in port.windows.values():
                windows.tell(into, port.problem)
            port.look_at_speed()

    def close(self) -> None:
        """Close the open files; the histograms continue from their current state."""
        for port in self._ports.values():
            port.close()
        self._ports = {}

    def _finding(self) -> Finding:
        if not self._ports:
            return Finding(
                "bursts of cards",
                Verdict.ABSENT,
                "no card with RDMA, or with counters that are fetched often enough",
            )
        lengths = sorted({port.window_ns // _NS_PER_MS for port in self._ports.values()})
        told = " and ".join(f"{length} ms" for length in lengths)
        detail = f"{counted(len(self._ports), 'card')}, windows of {told}"
        return Finding("bursts of cards", Verdict.SUPPORTED, detail)
