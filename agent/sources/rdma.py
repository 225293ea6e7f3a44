"""RDMA ports: every file of counters/ and hw_counters/, port state and line rate.

Layout: torvalds/linux:drivers/infiniband/core/sysfs.c. Reading one file of a set makes the driver
refresh the whole set, so the files of a port are read back to back.
"""

from __future__ import annotations

import re

from agent.facts import counted, known, linked, names, text
from agent.host import Host, KeptFiles
from agent.source import Columns, Finding, Inventory, Table, Verdict
from agent.topology import rails_by_address
from railscope.catalog import rdma as catalog
from railscope.catalog.declare import Metric
from railscope.catalog.entities import RDMA_COUNTER, RDMA_PORT
from railscope.entity import Entity
from railscope.reading import Absent, Reading, reason_of

ROOT = "/sys/class/infiniband"
_SETS = ("counters", "hw_counters")
_NO_COUNTERS = {"lifespan"}
_ACTIVE = 4
_MEGABITS_PER_GIGABIT = 1000
_NUMBERED = re.compile(rb"\s*(\d+)\s*:")
_RATE = re.compile(rb"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


class Rdma:
    """Counters, state and rate of every RDMA port, of any vendor."""

    name = "rdma"
    family = "network"
    longest_period_seconds = 10.0
    """Q counters of mlx5 are 32 bits wide: at some 400 million messages a second 11 seconds' worth."""

    def __init__(self, period_seconds: float = 1.0) -> None:
        self.period_seconds = period_seconds
        self._counters: KeptFiles | None = None
        self._states: KeptFiles | None = None
        self._first_state = 0

    def probe(self, host: Host) -> Inventory:
        """Find all ports and all their counter files."""
        try:
            devices = host.names(ROOT)
        except FileNotFoundError:
            devices = []
        rails = rails_by_address(host)
        columns = Columns()
        paths: list[str] = []
        ports: list[tuple[str, Entity]] = []
        for device in devices:
            for port in names(host, f"{ROOT}/{device}/ports"):
                folder = f"{ROOT}/{device}/ports/{port}"
                entity = Entity(RDMA_PORT, (device, port), _facts(host, device, folder, rails))
                ports.append((folder, entity))
                for path, metric, about in _counter_files(host, folder, entity):
                    columns.add(metric, about)
                    paths.append(path)
        self._first_state = len(columns.columns)
        for _, entity in ports:
            for metric in _STATES:
                columns.add(metric, entity)
        self.close()
        self._counters = host.keep(paths)
        self._states = host.keep([f"{folder}/{file}" for folder, _ in ports for file in _FILES])
        return Inventory(tuple(columns.columns), (), (_finding(devices, len(ports), len(paths)),))

    def read(self, host: Host, into: Table) -> None:  # noqa: ARG002 - its files are kept
        """Read all counter files, then the states."""
        if self._counters is None or self._states is None:
            return
        self._counters.read_into(into.values, into.reasons, 0)
        ports = (len(into.values) - self._first_state) // len(_STATES)
        for port in range(ports):
            file, column = port * len(_FILES), self._first_state + port * len(_STATES)
            state = _number(self._states, file)
            into.put(column, state)
            into.put(column + 1, _number(self._states, file + 1))
            into.put(column + 2, state if isinstance(state, Absent) else int(state == _ACTIVE))
            into.put(column + 3, _rate(self._states, file + 2))

    def close(self) -> None:
        """Close the kept files."""
        for kept in (self._counters, self._states):
            if kept:
                kept.close()
        self._counters = self._states = None


_FILES = ("state", "phys_state", "rate")
_STATES = (
    catalog.RDMA_STATE,
    catalog.RDMA_PHYSICAL_STATE,
    catalog.RDMA_UP,
    catalog.RDMA_RATE,
)


def _counter_files(host: Host, folder: str, port: Entity) -> list[tuple[str, Metric, Entity]]:
    found: dict[tuple[Metric, Entity], str] = {}
    for set_ in _SETS:
        for file in names(host, f"{folder}/{set_}"):
            if file in _NO_COUNTERS:
                continue
            metric = catalog.COUNTER_FILES.get(file)
            generic = metric is None or (metric, port) in found
            about = port.part(RDMA_COUNTER, file) if generic else port
            key = (catalog.other(file) if generic or metric is None else metric, about)
            found.setdefault(key, f"{folder}/{set_}/{file}")
    return [(path, metric, about) for (metric, about), path in found.items()]


def _facts(host: Host, device: str, folder: str, rails: dict[str, int]) -> dict[str, str]:
    base = f"{ROOT}/{device}"
    address = linked(host, f"{base}/device")
    return known(
        driver=linked(host, f"/sys/bus/pci/devices/{address}/driver") if address else "",
        pci_address=address,
        firmware=text(host, f"{base}/fw_ver"),
        board=text(host, f"{base}/board_id"),
        hca=text(host, f"{base}/hca_type"),
        link_layer=text(host, f"{folder}/link_layer"),
        interface=_interface(host, base, folder),
        rail=str(rails.get(address, "")),
    )


def _interface(host: Host, base: str, folder: str) -> str:
    named = text(host, f"{folder}/gid_attrs/ndevs/0")
    candidates = [named] if named else names(host, f"{base}/device/net")
    return candidates[0] if len(candidates) == 1 else ""


def _number(files: KeptFiles, index: int) -> Reading:
    """The number in "4: ACTIVE"."""
    try:
        match = _NUMBERED.match(files.text(index))
    except OSError as error:
        return reason_of(error)
    return int(match[1]) if match else Absent.ERROR


def _rate(files: KeptFiles, index: int) -> Reading:
    """The Mb/s in "400 Gb/sec (4X NDR)"; fractions of a gigabit occur."""
    try:
        match = _RATE.match(files.text(index))
    except OSError as error:
        return reason_of(error)
    return round(float(match[1]) * _MEGABITS_PER_GIGABIT) if match else Absent.ERROR


def _finding(devices: list[str], ports: int, files: int) -> Finding:
    if not devices:
        return Finding("RDMA devices", Verdict.ABSENT, f"{ROOT} has no device")
    found = (counted(len(devices), "device"), counted(ports, "port"))
    detail = f"{', '.join(found)}, {counted(files, 'counter file')}"
    return Finding("RDMA devices", Verdict.SUPPORTED, detail)
