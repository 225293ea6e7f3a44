"""Hardware monitors: temperatures, fans, voltages, currents, power, energy, with limits and alarms.

Files and units: torvalds/linux Documentation/hwmon/sysfs-interface.rst. The numbers in hwmonN
depend on the order in which drivers loaded, so a chip is identified by its name and its position:
its PCI address (0000:01:00.0), followed by the address on the bus behind it if there is one
(0000:00:1f.4/0-0018), else the name of its device (coretemp.0). A sensor is identified by its label
if the label is unique on the chip, and by its channel (temp2) otherwise.

Some chips are read over slow buses (I2C, IPMI behind ACPI) or with a firmware command (NVMe): the
source runs on its own thread.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from agent.host import Host, KeptFiles
from agent.sampling.facts import counted, names, text
from agent.sampling.source import Columns, Finding, Inventory, Table, Verdict
from agent.topology.pci import pci_path
from railscope.catalog import sensors as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import SENSOR, SENSOR_ALARM, SENSOR_LIMIT
from railscope.entity import Entity
from railscope.reading import Absent, parse_integer, reason_of

ROOT = "/sys/class/hwmon"
_FILE = re.compile(r"(?P<channel>(?P<type>temp|fan|power|energy|in|curr)\d+)_(?P<item>\w+)")
_VALUES: dict[tuple[str, str], Metric] = {
    ("temp", "input"): c.TEMPERATURE,
    ("fan", "input"): c.FAN,
    ("power", "input"): c.POWER,
    ("power", "average"): c.POWER_AVERAGE,
    ("energy", "input"): c.ENERGY,
    ("in", "input"): c.VOLTAGE,
    ("curr", "input"): c.CURRENT,
}
_LIMITS: dict[tuple[str, str], Metric] = {
    (kind, item): metric
    for kind, metric, items in (
        ("temp", c.TEMPERATURE_LIMIT, ("min", "max", "crit", "emergency", "lcrit")),
        ("fan", c.FAN_LIMIT, ("min", "max")),
        ("power", c.POWER_LIMIT, ("cap", "max", "crit")),
        ("in", c.VOLTAGE_LIMIT, ("min", "max", "crit", "lcrit")),
        ("curr", c.CURRENT_LIMIT, ("min", "max", "crit", "lcrit")),
    )
    for item in items
}
_ALARM = re.compile(r"(?:(?P<limit>\w+)_)?(?P<kind>alarm|fault)")
_BUS_ADDRESS = re.compile(r"[0-9a-f]+(-[0-9a-f]+|(:[0-9a-f]+)+)")
"""Address of a device on a bus behind a PCI device: I2C (0-0018), SCSI (0:0:0:0); not nvme0."""
_COLDEST, _HOTTEST = -273_150, 1_000_000
"""Range of valid temperature limits, in millidegrees: drives without one report 0 K or 65535 K."""


@dataclass(frozen=True, slots=True)
class _Chip:
    directory: str
    name: str
    address: str
    files: tuple[str, ...]


class Hwmon:
    """Every sensor of every hardware monitor, with its limits and alarms."""

    name = "hwmon"
    family = "hwmon"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._kept: KeptFiles | None = None

    def probe(self, host: Host) -> Inventory:
        """Find all chips and their sensors. Disabled sensors are omitted."""
        columns = Columns()
        paths: list[str] = []
        chips = _chips(host)
        sensors = 0
        for chip in chips:
            labels = _labels(host, chip)
            sensors += len(labels)
            for file in chip.files:
                found = _column(chip, labels, file)
                if found and _speaks(host, f"{chip.directory}/{file}", found[0]):
                    columns.add(*found)
                    paths.append(f"{chip.directory}/{file}")
        self.close()
        self._kept = host.keep(paths)
        return Inventory(tuple(columns.columns), (), (_finding(chips, sensors),))

    def read(self, host: Host, into: Table) -> None:  # noqa: ARG002 - its files are held open
        """Read every file."""
        if self._kept:
            self._kept.read_into(into.values, into.reasons, 0)

    def close(self) -> None:
        """Close the open files."""
        if self._kept:
            self._kept.close()
        self._kept = None


def _chips(host: Host) -> list[_Chip]:
    """All chips, each with a unique identity."""
    taken: Counter[tuple[str, str]] = Counter()
    chips = []
    for entry in names(host, ROOT):
        directory = f"{ROOT}/{entry}"
        address = _address(host, directory)
        files = _sensor_files(host, directory)
        if not files:  # old drivers put the files at the device
            directory = f"{directory}/device"
            files = _sensor_files(host, directory)
        if not files:
            continue
        name = text(host, f"{directory}/name") or "unnamed"
        taken[name, address] += 1
        twins = taken[name, address]
        chips.append(_Chip(directory, name, f"{address}#{twins}" if twins > 1 else address, files))
    return chips


def _sensor_files(host: Host, directory: str) -> tuple[str, ...]:
    return tuple(file for file in names(host, directory) if _FILE.fullmatch(file))


def _address(host: Host, directory: str) -> str:
    """Position of a chip that is stable across reboots; empty for a virtual chip."""
    try:
        device = host.resolve(f"{directory}/device")
    except OSError:
        return ""
    leaf = device.rsplit("/", 1)[-1]
    _, *addresses = pci_path(device)
    if not addresses:
        return leaf
    below = leaf != addresses[-1] and _BUS_ADDRESS.fullmatch(leaf)
    return f"{addresses[-1]}/{leaf}" if below else addresses[-1]


def _labels(host: Host, chip: _Chip) -> dict[str, str]:
    """Name of each channel: its label if it is unique, else the channel."""
    matches = filter(None, map(_FILE.fullmatch, chip.files))
    channels = sorted({match["channel"] for match in matches})
    labels = {
        channel: text(host, f"{chip.directory}/{channel}_label")
        or text(host, f"{chip.directory}/{channel}_oem_info")  # ACPI power meters, as of Grace
        for channel in channels
    }
    times = Counter(labels.values())
    return {
        channel: label if label and times[label] == 1 else channel
        for channel, label in labels.items()
    }


def _column(chip: _Chip, labels: dict[str, str], file: str) -> tuple[Metric, Entity] | None:
    match = _FILE.fullmatch(file)
    if not match:
        return None
    kind, item = match["type"], match["item"]
    sensor = Entity(SENSOR, (chip.name, chip.address, labels[match["channel"]]))
    if metric := _VALUES.get((kind, item)):
        return metric, sensor
    if metric := _LIMITS.get((kind, item)):
        return metric, sensor.part(SENSOR_LIMIT, item)
    if alarm := _ALARM.fullmatch(item):
        what = alarm["limit"] or ("any" if alarm["kind"] == "alarm" else "fault")
        return c.ALARM, sensor.part(SENSOR_ALARM, what)
    return None


def _speaks(host: Host, path: str, metric: Metric) -> bool:
    try:
        reading = parse_integer(host.read(path))
    except OSError as error:
        return reason_of(error) is not Absent.UNSUPPORTED
    if metric is c.TEMPERATURE_LIMIT and isinstance(reading, int):
        return _COLDEST < reading < _HOTTEST
    return True


def _finding(chips: list[_Chip], sensors: int) -> Finding:
    if not chips:
        return Finding("sensors", Verdict.ABSENT, f"{ROOT} has no chip (usual in a VM)")
    said = ", ".join(sorted({chip.name for chip in chips}))
    detail = f"{counted(sensors, 'sensor')} of {counted(len(chips), 'chip')}: {said}"
    return Finding("sensors", Verdict.SUPPORTED, detail)
