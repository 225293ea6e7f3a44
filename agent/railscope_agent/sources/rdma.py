"""RDMA ports: every counter file, optional counters, port state and line rate.

Counters that wrap at 32 bits are extended to 64; those that stick at their maximum are counted as
saturated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import ge

from railscope import counter_unwrap
from railscope.catalog import rdma as catalog
from railscope.catalog.declare import ALL_ONES
from railscope.catalog.entities import RDMA_COUNTER, RDMA_PORT
from railscope.frame import Entity
from railscope.reading import (
    PRESENT,
    REASONS,
    UNSIGNED_RANGE,
    Absent,
    Reading,
    is_failure,
    known_speed,
    reason_of,
)
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources.rdma_counter_files import (
    DEVICE,
    CounterFile,
    RdmaDevice,
    counter_directories,
    counter_files,
    rdma_driver,
)
from railscope_agent.sources.source_bases import UnwrappingSource
from railscope_agent.topology import rail_rules
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork

ROOT = "/sys/class/infiniband"
_MEGABITS_PER_GIGABIT = 1000
_NUMBERED = re.compile(rb"\s*(\d+)\s*:")
_RATE = re.compile(rb"\s*(\d+(?:\.\d+)?)\s*Gb/sec")

_STATE_FILES = ("state", "phys_state", "rate")
_STATES = (catalog.RDMA_STATE, catalog.RDMA_PHYSICAL_STATE, catalog.RDMA_UP, catalog.RDMA_RATE)


class RdmaSource(UnwrappingSource, source.SourceWithFiles):
    """Counters, state and rate of every RDMA port, of any vendor."""

    name = "rdma"
    lane = source.SYSTEM
    period_seconds = 1.0
    min_period_seconds = 0.02
    longest_period_seconds = 10.0
    """Q counters of mlx5 are 32 bits wide: they wrap in 11 s at some 400 million messages per second."""

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        super().__init__()
        self._wiring = wiring or NetworkScanner()
        self._steps: list[tuple[int, int]] = []
        self._saturating: list[_SaturatedCounters] = []
        self._optional: list[_OptionalCounters] = []
        self._first_state = 0
        self._state_texts: list[bytes | Absent] = []
        self._states: list[Reading] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find all ports and all their counter files."""
        network = self._wiring.scan(host)
        all_devices = _devices(host, network)
        bridges = [
            device.whole
            for device in all_devices
            if device.whole.facts.get("role") == rail_rules.BRIDGE
        ]
        devices = [device for device in all_devices if device.whole not in bridges]
        columns = probe_result.ColumnBuilder()
        files = [file for device in devices for file in counter_files(host, device)]
        for file in files:
            columns.add(file.metric, file.about)
        ports = [pair for device in devices for pair in device.ports]
        findings = [failure for each in devices for failure in _listing_failures(host, each)]
        self._optional = []
        for device in devices:
            for _, port in device.ports:
                try:
                    optional = _optional(host, device.driver, port, columns)
                except OSError as error:
                    if is_failure(error):
                        findings.append(_counter_failure(device, error, "rdma_statistics"))
                    continue
                if optional.columns:
                    self._optional.append(optional)
        self._saturating = _find_saturating(files, columns)
        self._first_state = len(columns.columns)
        for _, entity in ports:
            columns.add_each(_STATES, entity)
        self._steps = [(column, file.step) for column, file in enumerate(files) if file.step != 1]
        # The states of this run are newer than those of the file.
        self._before |= self._counter_states
        self._replace_unwraps(host, _unwraps(files, self._before))
        states = [f"{directory}/{file}" for directory, _ in ports for file in _STATE_FILES]
        self._keep(host, [f"{file.directory}/{file.name}" for file in files], states)
        remedy = "correct the section [topology] of the settings"
        findings += [
            probe_result.ProbeFinding("rails", probe_result.ProbeVerdict.BROKEN, problem, remedy)
            for problem in network.problems
        ]
        return columns.result(*findings, columnless_entities=bridges)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read all counter files, then the netlink counters, then the states."""
        if not self._files:
            return
        counters, states = self._files
        counters.read_into(into.values, into.reasons, 0)
        for optional in self._optional:
            optional.read(host, into)
        self._carry_on(host, into)
        texts = states.texts()
        # States rarely change: their texts are parsed once.
        if texts != self._state_texts:
            self._state_texts, self._states = texts, _parse_states(texts)
        into.put_readings(self._first_state, self._states)

    def _carry_on(self, host: Host, into: row_builder.RowBuilder) -> None:
        values = into.values
        for column, step in self._steps:
            # Modulo 64 bits, as the counter itself: port_rcv_data in words of four bytes wraps later than its
            # bytes.
            # All ones stay: they mark a value that the device does not know.
            if values[column] != ALL_ONES[1]:
                values[column] = values[column] * step % UNSIGNED_RANGE
        for saturated in self._saturating:
            # Before the unwrapping below, which changes the values.
            saturated.count(into)
        for unwrap in self._unwraps.values():
            unwrap.extend_values(values, into.reasons)
        self._save_unwraps(host)


@dataclass(frozen=True, slots=True)
class _SaturatedCounters:
    """Narrow counters of a port that stick at their maximum, and the column with the number of them."""

    column: int
    pick: Callable[[Sequence[int]], Sequence[int]]
    highest: tuple[int, ...]

    def count(self, into: row_builder.RowBuilder) -> None:
        reasons = self.pick(into.reasons)
        if PRESENT in reasons:
            into.put(self.column, sum(map(ge, self.pick(into.values), self.highest)))
        else:
            into.put(self.column, REASONS[reasons[0]])


def _find_saturating(
    files: Sequence[CounterFile], columns: probe_result.ColumnBuilder
) -> list[_SaturatedCounters]:
    sticking: dict[tuple[str, ...], dict[int, int]] = {}
    for column, file in enumerate(files):
        if file.highest:
            sticking.setdefault(file.about.key[:2], {})[column] = file.highest
    entities = {file.about.key: file.about for file in files if file.about.kind is RDMA_PORT}
    return [
        _SaturatedCounters(
            columns.add(catalog.RDMA_SATURATED, entities[key]),
            counter_unwrap.column_picker(of),
            tuple(of.values()),
        )
        for key, of in sticking.items()
    ]


def _unwraps(
    files: Sequence[CounterFile], before: dict[str, counter_unwrap.CounterStates]
) -> dict[str, counter_unwrap.CounterUnwrapper]:
    """One for each directory with 32-bit counters; its other counters have 64 bits."""
    narrow: dict[str, dict[str, int]] = {}
    wide: dict[str, list[int]] = {}
    for column, file in enumerate(files):
        if file.is_narrow:
            narrow.setdefault(file.directory, {})[file.name] = column
        else:
            wide.setdefault(file.directory, []).append(column)
    return {
        directory: counter_unwrap.CounterUnwrapper(
            of, wide.get(directory, ()), before.get(directory)
        )
        for directory, of in narrow.items()
    }


@dataclass(frozen=True, slots=True)
class _OptionalCounters:
    """Counters of a port that only netlink reports: one call for all of them."""

    port: Entity
    columns: dict[str, int]

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        try:
            statistics = _netlink(host, self.port)
        except OSError as error:
            into.put_each(self.columns.values(), reason_of(error))
            return
        for name, column in self.columns.items():
            into.put(column, statistics.get(name, Absent.GONE))


def _netlink(host: Host, port: Entity) -> dict[str, int]:
    device, number = port.key
    statistics: dict[str, int] = host.call("netlink", "rdma_statistics", device, int(number))
    return statistics


def _optional(
    host: Host, driver: str, port: Entity, columns: probe_result.ColumnBuilder
) -> _OptionalCounters:
    """Return the enabled optional counters of a port, and add columns for them. Raises OSError."""
    statistics = _netlink(host, port)
    taken = {metric for metric, about in columns.columns if about == port}
    counters = {}
    for name in sorted(statistics.keys() & catalog.OPTIONAL):
        metric, about = catalog.meaning(driver, name), port
        if metric is None or metric in taken:
            metric, about = catalog.other(name), port.child(RDMA_COUNTER, name)
        counters[name] = columns.add(metric, about)
    return _OptionalCounters(port, counters)


def _listing_failures(host: Host, device: RdmaDevice) -> Iterator[probe_result.ProbeFinding]:
    """Yield the directories of a device that cannot be read: their counters would be missing without a trace."""
    for directory in counter_directories(device):
        try:
            host.names(directory)
        except OSError as error:
            if is_failure(error):
                yield _counter_failure(
                    device, error, directory.removeprefix(f"{device.directory}/")
                )


def _counter_failure(device: RdmaDevice, error: OSError, query: str) -> probe_result.ProbeFinding:
    remedy = "allow the agent to read /sys/class/infiniband, and netlink sockets (AF_NETLINK)"
    return probe_result.ProbeFinding.failed(
        "counters of", error, remedy, query, device.whole.key[0]
    )


def _devices(host: Host, network: NodeNetwork) -> list[RdmaDevice]:
    try:
        names = host.names(ROOT)
    except FileNotFoundError:
        return []
    return [_device(host, name, network) for name in names]


def _device(host: Host, name: str, network: NodeNetwork) -> RdmaDevice:
    base = f"{ROOT}/{name}"
    facts = _facts(host, name, network)
    ports = []
    for port in fact_readers.list_names(host, f"{base}/ports"):
        directory = f"{base}/ports/{port}"
        named = fact_readers.read_text(host, f"{directory}/gid_attrs/ndevs/0")
        of_port = fact_readers.nonempty_facts(
            link_layer=fact_readers.read_text(host, f"{directory}/link_layer"),
            interface=_interface(network, name, port, named),
        )
        if named in network.interfaces and not network.interfaces[named].is_port:
            # A NIC in switchdev mode has a port for each representor, of one RDMA device.
            of_port |= {"role": rail_rules.VIRTUAL_FUNCTION, "rail": ""}
        of_port = fact_readers.nonempty_facts(**(facts | of_port))
        ports.append((directory, Entity(RDMA_PORT, (name, port), of_port)))
    driver = rdma_driver(facts.get("driver", ""), name)
    return RdmaDevice(driver, base, Entity(RDMA_PORT, (name, DEVICE), facts), tuple(ports))


def _facts(host: Host, name: str, network: NodeNetwork) -> dict[str, str]:
    base, device = f"{ROOT}/{name}", network.device_of(name)
    return device.facts | fact_readers.nonempty_facts(
        driver=device.driver or fact_readers.read_link_name(host, f"{base}/device/driver"),
        pci_address=device.address,
        firmware=fact_readers.read_text(host, f"{base}/fw_ver"),
        board=fact_readers.read_text(host, f"{base}/board_id"),
        hca=fact_readers.read_text(host, f"{base}/hca_type"),
    )


def _interface(network: NodeNetwork, device: str, port: str, named: str) -> str:
    """Return the interface of a port: that of its GIDs, unless it is a bond, or the only one of the device's port."""
    if named in network.interfaces:
        return named
    of_port = [
        interface.name
        for interface in network.interfaces.values()
        if (interface.rdma_device, interface.rdma_port) == (device, port)
    ]
    return of_port[0] if len(of_port) == 1 else ""


def _parse_states(texts: Sequence[bytes | Absent]) -> list[Reading]:
    """Readings of each port from its state files."""
    readings: list[Reading] = []
    for port in range(0, len(texts), len(_STATE_FILES)):
        state, physical_state, rate = texts[port : port + len(_STATE_FILES)]
        number = _parse_state(state)
        is_up = number if isinstance(number, Absent) else int(number in catalog.ACTIVE_STATES)
        readings += (number, _parse_state(physical_state), is_up, _parse_rate(rate))
    return readings


def _parse_state(content: bytes | Absent) -> Reading:
    """The number in "4: ACTIVE"."""
    if isinstance(content, Absent):
        return content
    match = _NUMBERED.match(content)
    return int(match[1]) if match else Absent.ERROR


def _parse_rate(content: bytes | Absent) -> Reading:
    """Mb/s from a text such as "400 Gb/sec (4X NDR)"; fractions of a gigabit occur."""
    if isinstance(content, Absent):
        return content
    match = _RATE.match(content)
    return known_speed(round(float(match[1]) * _MEGABITS_PER_GIGABIT)) if match else Absent.ERROR
