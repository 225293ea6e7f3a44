"""PCIe links of GPUs, network cards, NVMe drives and the switch ports above them, from sysfs.

Files: torvalds/linux Documentation/ABI/testing/sysfs-bus-pci and
sysfs-bus-pci-devices-aer_stats. A reading of "Unknown" speed or 0 or 255 lanes is no value.
"""

from __future__ import annotations

import re

from agent.facts import known, linked, text
from agent.host import Host, KeptFiles
from agent.source import Columns, Finding, Inventory, Table, Verdict
from agent.topology import pci_path
from railscope.catalog import pcie as catalog
from railscope.catalog.declare import Metric
from railscope.catalog.entities import PCIE, PCIE_AER
from railscope.entity import Entity
from railscope.reading import Absent, Reading, reason_of

ROOT = "/sys/bus/pci/devices"
_ROLES = {
    "0x0300": "gpu", "0x0302": "gpu", "0x0108": "nvme",
    "0x0200": "nic", "0x0207": "nic", "0x0208": "nic", "0x0c06": "nic",
}  # fmt: skip
_BRIDGE = "0x0604"
_NVSWITCH = ("0x10de", "0x0680")
_SEVERITIES = ("correctable", "nonfatal", "fatal")
_SPEED = re.compile(rb"\s*(\d+(?:\.\d+)?)\s*GT/s")
_MEGATRANSFERS = 1000
_UNKNOWN_WIDTHS = {0, 63, 255}  # 63 and 255: registers of a dead device read all ones
_LINKS: tuple[tuple[str, Metric], ...] = (
    ("current_link_speed", catalog.PCIE_SPEED),
    ("max_link_speed", catalog.PCIE_SPEED_LIMIT),
    ("current_link_width", catalog.PCIE_WIDTH),
    ("max_link_width", catalog.PCIE_WIDTH_LIMIT),
)


class Pcie:
    """Speed, width and error counts of the links that carry GPU and network traffic."""

    name = "pcie"
    family = "pcie"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._kept: KeptFiles | None = None
        self._links: list[tuple[int, str, int]] = []
        self._errors: list[tuple[int, dict[str, int]]] = []

    def probe(self, host: Host) -> Inventory:
        """Find the devices of interest, and everything between them and the processor."""
        columns = Columns()
        paths: list[str] = []
        self._links, self._errors = [], []
        devices = _devices(host)
        for address, role in devices.items():
            entity = Entity(PCIE, (address,), _facts(host, address, role))
            for file, metric in _LINKS:
                path = f"{ROOT}/{address}/{file}"
                if text(host, path):
                    self._links.append((len(paths), file, columns.add(metric, entity)))
                    paths.append(path)
            for severity in _SEVERITIES:
                path = f"{ROOT}/{address}/aer_dev_{severity}"
                positions = {
                    error: columns.add(
                        catalog.PCIE_AER_ERRORS, entity.part(PCIE_AER, severity, error)
                    )
                    for error in parse_aer(text(host, path).encode())
                }
                if positions:
                    self._errors.append((len(paths), positions))
                    paths.append(path)
        self.close()
        self._kept = host.keep(paths)
        return Inventory(tuple(columns.columns), (), (_finding(devices, bool(self._errors)),))

    def read(self, host: Host, into: Table) -> None:  # noqa: ARG002 - its files are kept
        """Read every link and every error file."""
        if self._kept is None:
            return
        for file, name, column in self._links:
            into.put(column, _link(self._kept, file, name))
        for file, positions in self._errors:
            try:
                counts = parse_aer(self._kept.text(file))
            except OSError as error:
                for column in positions.values():
                    into.put(column, reason_of(error))
                continue
            for name, column in positions.items():
                into.put(column, counts.get(name, Absent.GONE))

    def close(self) -> None:
        """Close the kept files."""
        if self._kept:
            self._kept.close()
        self._kept = None


def parse_aer(text: bytes) -> dict[str, int]:
    """Counts by error from an aer_dev_* file, without the line of the total.

    Names may hold spaces (older kernels), so a line is split at its last one; a line that does not
    end in a number is left out.
    """
    counts = {}
    for line in text.decode(errors="replace").splitlines():
        name, _, count = line.strip().rpartition(" ")
        if name and count.isdecimal() and not name.startswith("TOTAL_ERR"):
            counts[name] = int(count)
    return counts


def _link(files: KeptFiles, index: int, name: str) -> Reading:
    try:
        content = files.text(index).strip()
    except OSError as error:
        return reason_of(error)
    if name.endswith("_speed"):
        match = _SPEED.match(content)
        if match:
            return round(float(match[1]) * _MEGATRANSFERS)
        return Absent.UNSUPPORTED if content.startswith(b"Unknown") else Absent.ERROR
    if not content.isdigit():
        return Absent.ERROR
    return Absent.UNSUPPORTED if int(content) in _UNKNOWN_WIDTHS else int(content)


def _devices(host: Host) -> dict[str, str]:
    try:
        addresses = host.names(ROOT)
    except FileNotFoundError:
        return {}
    roles = {address: _role(host, address) for address in addresses}
    wanted = {address: role for address, role in roles.items() if role not in {"", "bridge"}}
    for address in list(wanted):
        try:
            above = pci_path(host.resolve(f"{ROOT}/{address}"))[1:-1]
        except OSError:
            continue
        wanted |= {bridge: "bridge" for bridge in above if roles.get(bridge) == "bridge"}
    return dict(sorted(wanted.items()))


def _role(host: Host, address: str) -> str:
    class_, vendor = text(host, f"{ROOT}/{address}/class"), text(host, f"{ROOT}/{address}/vendor")
    if (vendor, class_[:6]) == _NVSWITCH:
        return "nvswitch"
    if class_.startswith(_BRIDGE):
        return "bridge"
    return _ROLES.get(class_[:6], "")


def _facts(host: Host, address: str, role: str) -> dict[str, str]:
    folder = f"{ROOT}/{address}"
    return known(
        role=role,
        vendor=text(host, f"{folder}/vendor"),
        device=text(host, f"{folder}/device"),
        driver=linked(host, f"{folder}/driver"),
        numa_node=text(host, f"{folder}/numa_node"),
    )


def _finding(devices: dict[str, str], errors: bool) -> Finding:  # noqa: FBT001 - a plain fact
    if not devices:
        return Finding("PCIe devices", Verdict.ABSENT, f"{ROOT} has no GPU, card or drive")
    aer = f"{'with' if errors else 'without'} AER counters"
    what = "1 device" if len(devices) == 1 else f"{len(devices)} devices and bridges"
    return Finding("PCIe devices", Verdict.SUPPORTED, f"{what}, {aer}")
