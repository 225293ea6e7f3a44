"""RDMA ports: every file of counters/ and hw_counters/, port state and line rate.

Layout: torvalds/linux:drivers/infiniband/core/sysfs.c. Reading one file of a set makes the driver
refresh the whole set, so the files of a port are read back to back.
"""

from __future__ import annotations

import re

from agent.facts import known, linked, names, text
from agent.host import CounterFiles, Host
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
_NUMBERED = re.compile(r"\s*(\d+)\s*:")
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


class Rdma:
    """Counters, state and rate of every RDMA port, of any vendor."""

    name = "rdma"
    family = "rdma"

    def __init__(self, period_seconds: float = 1.0) -> None:
        self.period_seconds = period_seconds
        self._files: CounterFiles | None = None
        self._ports: list[tuple[str, int]] = []

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
        self._ports = []
        for folder, entity in ports:
            self._ports.append((folder, len(columns.columns)))
            for metric in _STATES:
                columns.add(metric, entity)
        if self._files:
            self._files.close()
        self._files = host.counters(paths)
        return Inventory(tuple(columns.columns), (), (_finding(devices, len(ports), len(paths)),))

    def read(self, host: Host, into: Table) -> None:
        """Read all counter files, then the states."""
        if self._files:
            self._files.read_into(into.values, into.reasons, 0)
        for folder, start in self._ports:
            state = _number(host, f"{folder}/state")
            into.put(start, state)
            into.put(start + 1, _number(host, f"{folder}/phys_state"))
            into.put(start + 2, state if isinstance(state, Absent) else int(state == _ACTIVE))
            into.put(start + 3, _rate(host, f"{folder}/rate"))


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
            key = (catalog.RDMA_OTHER if generic or metric is None else metric, about)
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


def _number(host: Host, path: str) -> Reading:
    """The number in "4: ACTIVE"."""
    try:
        match = _NUMBERED.match(host.read(path).decode(errors="replace"))
    except OSError as error:
        return reason_of(error)
    return int(match[1]) if match else Absent.ERROR


def _rate(host: Host, path: str) -> Reading:
    """The Mb/s in "400 Gb/sec (4X NDR)"; fractions of a gigabit occur."""
    try:
        match = _RATE.match(host.read(path).decode(errors="replace"))
    except OSError as error:
        return reason_of(error)
    return round(float(match[1]) * _MEGABITS_PER_GIGABIT) if match else Absent.ERROR


def _finding(devices: list[str], ports: int, files: int) -> Finding:
    if not devices:
        return Finding("RDMA devices", Verdict.ABSENT, f"{ROOT} has no device")
    detail = f"{len(devices)} devices, {ports} ports, {files} counter files"
    return Finding("RDMA devices", Verdict.SUPPORTED, detail)
