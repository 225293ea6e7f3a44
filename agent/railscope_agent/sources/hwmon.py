"""Hardware monitors (hwmon): temperatures, fans, voltages, currents, power, energy, with limits and alarms.

Files and units: torvalds/linux Documentation/hwmon/sysfs-interface.rst.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from railscope.catalog import declare, entities, sensors as catalog
from railscope.frame import Entity
from railscope.reading import Absent, parse_integer, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, source
from railscope_agent.topology.pci import pci_path

HWMON_ROOT = "/sys/class/hwmon"
_FILE = re.compile(r"(?P<channel>(?P<type>temp|fan|power|energy|in|curr)\d+)_(?P<item>\w+)")
_VALUES: dict[tuple[str, str], declare.Metric] = {
    ("temp", "input"): catalog.SENSOR_TEMPERATURE,
    ("fan", "input"): catalog.SENSOR_FAN,
    ("power", "input"): catalog.SENSOR_POWER,
    ("power", "average"): catalog.SENSOR_POWER_AVERAGE,
    ("energy", "input"): catalog.SENSOR_ENERGY,
    ("in", "input"): catalog.SENSOR_VOLTAGE,
    ("curr", "input"): catalog.SENSOR_CURRENT,
}
_LIMITS: dict[tuple[str, str], declare.Metric] = {
    (kind, item): metric
    for kind, metric, items in (
        ("temp", catalog.SENSOR_TEMPERATURE_LIMIT, ("min", "max", "crit", "emergency", "lcrit")),
        ("fan", catalog.SENSOR_FAN_LIMIT, ("min", "max")),
        ("power", catalog.SENSOR_POWER_LIMIT, ("cap", "max", "crit")),
        ("in", catalog.SENSOR_VOLTAGE_LIMIT, ("min", "max", "crit", "lcrit")),
        ("curr", catalog.SENSOR_CURRENT_LIMIT, ("min", "max", "crit", "lcrit")),
    )
    for item in items
}
_ALARM = re.compile(r"(?:(?P<limit>\w+)_)?(?P<kind>alarm|fault)")
_BUS_ADDRESS = re.compile(r"[0-9a-f]+(-[0-9a-f]+|(:[0-9a-f]+)+)")
"""Address of a device on a bus behind a PCI device: I2C (0-0018), SCSI (0:0:0:0); not nvme0."""
_COLDEST, _HOTTEST = -273_150, 1_000_000
"""Range of valid temperature limits, in millidegrees: drives without one report 0 K or 65535 K."""


@dataclass(frozen=True, slots=True)
class _HwmonChip:
    directory: str
    name: str
    address: str
    files: tuple[str, ...]


class HwmonSource(source.CounterFileSource):
    """Every sensor of every hardware monitor, with its limits and alarms.

    A sensor is identified by its label if the label is unique on the chip, and by its channel (temp2)
    otherwise. Some chips are read over slow buses (I2C, IPMI behind ACPI) or with a firmware command
    (NVMe): the source runs on its own thread.
    """

    name = "hwmon"
    period_seconds = 10.0

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find all chips and their sensors. Disabled sensors are omitted."""
        columns = probe_result.ColumnBuilder()
        paths: list[str] = []
        for chip in _chips(host):
            labels = _labels(host, chip)
            for file in chip.files:
                sensor_column = _column(chip, labels, file)
                if sensor_column and _is_readable(
                    host, f"{chip.directory}/{file}", sensor_column[0]
                ):
                    columns.add(*sensor_column)
                    paths.append(f"{chip.directory}/{file}")
        self._keep(host, paths)
        return columns.result()


def _chips(host: Host) -> list[_HwmonChip]:
    """All chips, each with a unique identity.

    The numbers in hwmonN depend on the order in which drivers loaded, so a chip is identified by its name
    and its position.
    """
    name_counts: Counter[tuple[str, str]] = Counter()
    chips = []
    for entry in fact_readers.list_names(host, HWMON_ROOT):
        directory = f"{HWMON_ROOT}/{entry}"
        address = _address(host, directory)
        files = _sensor_files(host, directory)
        if not files:  # old drivers put the files at the device
            directory = f"{directory}/device"
            files = _sensor_files(host, directory)
        if not files:
            continue
        name = fact_readers.read_text(host, f"{directory}/name") or "unnamed"
        name_counts[name, address] += 1
        twins = name_counts[name, address]
        position = f"{address}#{twins}" if twins > 1 else address
        chips.append(_HwmonChip(directory, name, position, files))
    return chips


def _sensor_files(host: Host, directory: str) -> tuple[str, ...]:
    return tuple(file for file in fact_readers.list_names(host, directory) if _FILE.fullmatch(file))


def _address(host: Host, directory: str) -> str:
    """Position of a chip that is stable across reboots; empty for a virtual chip.

    A PCI address (0000:01:00.0), followed by the address on the bus behind it if there is one
    (0000:00:1f.4/0-0018), else the name of its device (coretemp.0).
    """
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


def _labels(host: Host, chip: _HwmonChip) -> dict[str, str]:
    """Name of each channel: its label if it is unique, else the channel."""
    matches = filter(None, map(_FILE.fullmatch, chip.files))
    channels = sorted({match["channel"] for match in matches})
    files = ("label", "oem_info")  # the latter of ACPI power meters, as of Grace
    labels = {
        channel: next(
            filter(
                None,
                (fact_readers.read_text(host, f"{chip.directory}/{channel}_{f}") for f in files),
            ),
            "",
        )
        for channel in channels
    }
    times = Counter(labels.values())
    return {
        channel: label if label and times[label] == 1 else channel
        for channel, label in labels.items()
    }


def _column(
    chip: _HwmonChip, labels: dict[str, str], file: str
) -> tuple[declare.Metric, Entity] | None:
    match = _FILE.fullmatch(file)
    if not match:
        return None
    kind, item = match["type"], match["item"]
    sensor = Entity(entities.SENSOR, (chip.name, chip.address, labels[match["channel"]]))
    if metric := _VALUES.get((kind, item)):
        return metric, sensor
    if metric := _LIMITS.get((kind, item)):
        return metric, sensor.child(entities.SENSOR_LIMIT, item)
    if alarm := _ALARM.fullmatch(item):
        alarm_name = alarm["limit"] or ("any" if alarm["kind"] == "alarm" else "fault")
        return catalog.SENSOR_ALARMS, sensor.child(entities.SENSOR_ALARM, alarm_name)
    return None


def _is_readable(host: Host, path: str, metric: declare.Metric) -> bool:
    try:
        reading = parse_integer(host.read(path))
    except OSError as error:
        # Other failures, such as a sleeping device, may end: the sensor keeps its column.
        return reason_of(error) is not Absent.UNSUPPORTED
    if metric is catalog.SENSOR_TEMPERATURE_LIMIT and isinstance(reading, int):
        return _COLDEST < reading < _HOTTEST
    return True
