"""PCIe links of GPUs, NICs, NVMe drives and the switch ports above them, from sysfs.

Files: torvalds/linux Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats.
"Unknown" speed and 0 or 255 lanes are not values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

from railscope.catalog import declare, pcie as catalog
from railscope.catalog.entities import PCIE, PCIE_AER, PCIE_ERROR, PCIE_ROOT_ERROR, PCIE_SEVERITY
from railscope.frame import Entity
from railscope.reading import Absent, reason_of
from railscope_agent.host import FileGroup, Host
from railscope_agent.sampling import (
    answer_readings,
    counter_total,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sources.pci_presence import PciPresence
from railscope_agent.topology import network_interface, pci, pcie_links

ALL_ERRORS = "TOTAL_ERR"
"""Prefix of the line of an aer_dev_* file that counts messages of all kinds (pcie/aer.c)."""
MAX_CACHED_TEXTS = 256
"""Different contents of error files whose counts are kept: most files of a node are equal, and rarely change."""
_SEVERITIES = ("correctable", "nonfatal", "fatal")
_ROOT_FILES = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}
_LINKS: dict[str, tuple[declare.Metric, str]] = {
    "current_link_speed": (catalog.PCIE_SPEED, "speed"),
    "max_link_speed": (catalog.PCIE_SPEED_LIMIT, "speed_limit"),
    "current_link_width": (catalog.PCIE_WIDTH, "width"),
    "max_link_width": (catalog.PCIE_WIDTH_LIMIT, "width_limit"),
}
_AWAKE = "D0"


@dataclass(slots=True)
class _PcieColumns:
    """Columns of the last probe, by data source."""

    columns: probe_result.ColumnBuilder = field(default_factory=probe_result.ColumnBuilder)
    links: list[tuple[int, str, str]] = field(default_factory=list)
    paths: list[tuple[int, tuple[pcie_links.PcieLink, ...]]] = field(default_factory=list)
    states: list[tuple[int, tuple[pcie_links.PcieLink, ...]]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    errors: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    totals: list[tuple[int, str, dict[str | tuple[str, ...], int]]] = field(default_factory=list)
    """Columns of each severity: the column of the node's total, and the columns of the devices by their keys."""
    root_errors: list[tuple[int, int]] = field(default_factory=list)
    gone: list[tuple[int, str]] = field(default_factory=list)


class PcieSource(source.SourceWithFiles):
    """Speed, width and errors of the links that carry GPU and network traffic; vanished devices.

    The state of a GPU's path belongs to another source: only its driver reports whether a
    slow link saves power.
    """

    name = "pcie"
    lane = source.SYSTEM
    period_seconds = 10.0

    def __init__(self) -> None:
        self._plan = _PcieColumns()
        self._presence = PciPresence()
        self._link_addresses: tuple[str, ...] = ()
        self._sums = {severity: counter_total.CounterTotal() for severity in _SEVERITIES}

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the relevant devices, and all devices between them and the processor."""
        try:
            addresses = host.names(pci.DEVICES)
        except FileNotFoundError:
            addresses = []
        devices = pci.read_pci_devices(host)
        roles = {address: device.role for address, device in devices.items()}
        entities = {a: Entity(PCIE, (a,), _facts(host, device)) for a, device in devices.items()}
        plan = self._plan = _PcieColumns()
        for address, device in devices.items():
            entity = entities[address]
            for file in pcie_links.FILES:
                metric, member = _LINKS[file]
                if fact_readers.read_text(host, f"{pci.DEVICES}/{address}/{file}"):
                    plan.links.append((plan.columns.add(metric, entity), address, member))
            path = pcie_links.list_path_links(device.place.chain, roles)
            if path and fact_readers.read_text(
                host, f"{pci.DEVICES}/{path[-1].lower}/current_link_speed"
            ):
                metrics = catalog.PCIE_PATH_LIMIT, catalog.PCIE_PATH_BANDWIDTH
                plan.paths.append((plan.columns.add_each(metrics, entity), path))
                if device.role != pci.GPU:
                    column = plan.columns.add(catalog.PCIE_PATH_STATE, entity)
                    plan.states.append((column, path))
            _place_errors(host, plan, entity)
        self._place_totals(plan)
        lasting = {
            a: e
            for a, e in entities.items()
            # Virtual functions come and go by configuration: one that is removed has not vanished.
            if not pci.is_virtual_function(host, f"{pci.DEVICES}/{a}")
        }
        interfaces = network_interface.whole_functions(network_interface.read_interfaces(host))
        names = pci.find_device_names(host, devices, interfaces)
        for address, entity in self._presence.add_devices(addresses, lasting, names).items():
            column = plan.columns.add(catalog.PCIE_GONE, entity)
            plan.gone.append((column, address))
        self._link_addresses = tuple(devices)
        self._keep(host, pcie_links.link_files(devices), plan.files)
        return plan.columns.result()

    def _place_totals(self, plan: _PcieColumns) -> None:
        """Add a total for each severity that a device has counters of, or had: files may be empty now."""
        by_severity: dict[str, dict[str | tuple[str, ...], int]] = {
            severity: {} for severity, total in self._sums.items() if total.has_started
        }
        for position, (metric, entity) in enumerate(plan.columns.columns):
            if metric is catalog.PCIE_ERRORS:
                by_severity.setdefault(entity.key[-1], {})[entity.key] = position
        for severity, devices in by_severity.items():
            column = plan.columns.add(catalog.PCIE_ALL_ERRORS, Entity(PCIE_SEVERITY, (severity,)))
            plan.totals.append((column, severity, devices))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """List the devices on the bus, and read every link and every error file."""
        if not self._files:
            return
        links, counts = self._files
        self._read_presence(host, into)
        states = pcie_links.read_links(links, self._link_addresses)
        for column, address, member in self._plan.links:
            into.put(column, getattr(states.get(address, pcie_links.UNKNOWN_LINK_STATE), member))
        for column, path in self._plan.paths:
            into.put(column, pcie_links.path_limit(path, states))
            into.put(column + 1, pcie_links.path_bandwidth(path, states))
        for column, path in self._plan.states:
            saves_power = partial(_is_saving_power, host)
            into.put(column, pcie_links.path_state(path, states, saves_power))
        self._read_errors(counts, into)

    def _read_presence(self, host: Host, into: row_builder.RowBuilder) -> None:
        try:
            addresses = set(host.names(pci.DEVICES))
        except OSError as error:
            into.put_each((column for column, _ in self._plan.gone), reason_of(error))
            return
        for column, address in self._plan.gone:
            into.put(column, int(address not in addresses))
        into.events += self._presence.compare(addresses, host.clock.now())
        into.needs_probe |= self._presence.has_changed

    def _read_errors(self, counts: FileGroup, into: row_builder.RowBuilder) -> None:
        contents = counts.texts()
        for file, positions in self._plan.errors:
            content = contents[file]
            if isinstance(content, Absent):
                into.put_each(positions.values(), content)
                continue
            counts_by_kind = parse_aer(content)
            for name, column in positions.items():
                into.put(column, counts_by_kind.get(name, Absent.GONE))
        for column, severity, devices in self._plan.totals:
            into.put(column, self._sums[severity].update(into, devices))
        for file, column in self._plan.root_errors:
            into.put(column, answer_readings.content_reading(contents[file]))


@lru_cache(MAX_CACHED_TEXTS)
def parse_aer(text: bytes) -> Mapping[str, int]:
    """Counts by error from an aer_dev_* file, with the count of all errors as `ALL_ERRORS`.

    Names may contain spaces (older kernels), so a line is split at its last one; a line that does
    not end in a number is skipped.
    """
    counts = {}
    for line in text.decode(errors="replace").splitlines():
        name, _, count = line.strip().rpartition(" ")
        if name and count.isdecimal():
            counts[ALL_ERRORS if name.startswith(ALL_ERRORS) else name] = int(count)
    return counts


def _place_errors(host: Host, plan: _PcieColumns, entity: Entity) -> None:
    directory = f"{pci.DEVICES}/{entity.key[0]}"
    for severity in _SEVERITIES:
        path = f"{directory}/aer_dev_{severity}"
        positions = {
            error: plan.columns.add(catalog.PCIE_ERRORS, entity.child(PCIE_ERROR, severity))
            if error == ALL_ERRORS
            else plan.columns.add(catalog.PCIE_AER_ERRORS, entity.child(PCIE_AER, severity, error))
            for error in parse_aer(fact_readers.read_text(host, path).encode())
        }
        if positions:
            plan.errors.append((len(plan.files), positions))
            plan.files.append(path)
    for severity, name in _ROOT_FILES.items():
        path = f"{directory}/aer_rootport_total_err_{name}"
        if fact_readers.read_text(host, path):
            about = entity.child(PCIE_ROOT_ERROR, severity)
            column = plan.columns.add(catalog.PCIE_ROOT_ERRORS, about)
            plan.root_errors.append((len(plan.files), column))
            plan.files.append(path)


def _is_saving_power(host: Host, address: str) -> bool | Absent:
    """True if a device may be saving power. NICs and switches never slow their links.

    A drive may, but not in D0 (Documentation/ABI/testing/sysfs-bus-pci, power_state).
    """
    if pci.read_role(host, address) != pci.NVME:
        return False
    try:
        power_state = (
            host.read(f"{pci.DEVICES}/{address}/power_state").decode(errors="replace").strip()
        )
    except FileNotFoundError:
        return Absent.UNSUPPORTED
    except OSError as error:
        return reason_of(error)
    if power_state in {"unknown", "error", ""}:
        return Absent.UNSUPPORTED
    return power_state != _AWAKE


def _facts(host: Host, device: pci.PciDevice) -> dict[str, str]:
    directory = f"{pci.DEVICES}/{device.address}"
    return fact_readers.nonempty_facts(
        role=device.role,
        vendor=device.vendor,
        device=device.device,
        driver=fact_readers.read_link_name(host, f"{directory}/driver"),
        numa_node=fact_readers.read_text(host, f"{directory}/numa_node"),
    )
