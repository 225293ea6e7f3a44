"""Hardware monitors (hwmon), and the energy of the processors' power domains (RAPL).

Monitors: temperatures, fans, voltages, currents, power, energy, with limits and alarms. Files and
units: torvalds/linux Documentation/hwmon/sysfs-interface.rst.

Energy comes from the kernel's power capping framework. Files: torvalds/linux
Documentation/power/powercap/powercap.rst. Intel and AMD processors share the driver's name.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from railscope.catalog import declare, entities, sensors as catalog
from railscope.frame import Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
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
    family = "hwmon"

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find all chips and their sensors. Disabled sensors are omitted."""
        columns = probe_result.ColumnBuilder()
        paths: list[str] = []
        chips = _chips(host)
        sensors = 0
        for chip in chips:
            labels = _labels(host, chip)
            sensors += len(labels)
            for file in chip.files:
                sensor_column = _column(chip, labels, file)
                if sensor_column and _is_readable(
                    host, f"{chip.directory}/{file}", sensor_column[0]
                ):
                    columns.add(*sensor_column)
                    paths.append(f"{chip.directory}/{file}")
        self._keep(host, paths)
        return columns.result(_hwmon_finding(chips, sensors))


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
        return reason_of(error) is not Absent.UNSUPPORTED
    if metric is catalog.SENSOR_TEMPERATURE_LIMIT and isinstance(reading, int):
        return _COLDEST < reading < _HOTTEST
    return True


def _hwmon_finding(chips: list[_HwmonChip], sensors: int) -> probe_result.ProbeFinding:
    if not chips:
        detail = f"{HWMON_ROOT} contains no chip (usual in a VM)"
        return probe_result.ProbeFinding.absent("sensors", detail)
    counts = (
        probe_result.format_count(sensors, "sensor"),
        probe_result.format_count(len(chips), "chip"),
    )
    names_text = ", ".join(sorted({chip.name for chip in chips}))
    return probe_result.ProbeFinding.supported("sensors", f"{' of '.join(counts)}: {names_text}")


POWERCAP_ROOT = "/sys/class/powercap"
MAX_WATTS = 2000
"""Higher than the power of any domain with a counter that wraps within a day."""
_RANGE_FILE = "max_energy_range_uj"
_ZONE = re.compile(r"intel-rapl(-mmio)?(:[0-9a-f]+)+")
_REMEDY = (
    "run the agent as root, grant it CAP_DAC_READ_SEARCH, or make "
    "/sys/class/powercap/*/energy_uj readable"
)


@dataclass(slots=True)
class EnergyCounter:
    """A counter that wraps at a range, extended from 0; all energy in uJ."""

    range_uj: int
    total_uj: int = 0
    _last: tuple[int, int] | None = None

    def advance(self, raw_uj: int, now_ns: int) -> Reading:
        """Total after a sample of the hardware's counter; NOT_DUE for the first sample.

        A decrease is a wrap if the energy it stands for could have been used since the last sample,
        and otherwise a reset. After a reset, and after a pause so long that wraps may have been
        missed, the total restarts at 0, so that the gap is not mistaken for measured energy.
        """
        last, self._last = self._last, (raw_uj, now_ns)
        if last is None:
            return Absent.NOT_DUE
        before_uj, before_ns = last
        max_uj = (now_ns - before_ns) * MAX_WATTS // 1000
        step_uj = raw_uj - before_uj
        if step_uj < 0:
            step_uj += self.range_uj
        rounds_may_be_unseen = max_uj >= self.range_uj
        fell_by_reset = raw_uj < before_uj and not 0 <= step_uj <= max_uj
        if rounds_may_be_unseen or fell_by_reset:
            self.total_uj = 0
        else:
            self.total_uj += step_uj
        return self.total_uj


class RaplSource(source.SourceWithFiles):
    """Energy and power limits of packages, memory and cores.

    Only root may read energy_uj since kernel 5.10 (CVE-2020-8694); without root the limits are still
    readable. The counter wraps at max_energy_range_uj, every few minutes on a busy package. It is extended
    to 64 bits; one unit of the hardware (15 or 61 uJ) is lost at each wrap.
    """

    name = "rapl"
    family = "host"
    longest_period_seconds = 30.0
    """The smallest range, 65.5 kJ, may be used up in 33 seconds."""

    def __init__(self) -> None:
        self._counters: dict[str, EnergyCounter] = {}
        self._domains: list[EnergyCounter] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the domains; a domain reported by two interfaces is used once."""
        columns = probe_result.ColumnBuilder()
        domains = _domains(host)
        denied = False
        self._domains = []
        for domain, directory in domains.items():
            columns.add(catalog.RAPL_ENERGY, Entity(entities.ENERGY_DOMAIN, (domain,)))
            range_uj = int(fact_readers.read_text(host, f"{directory}/{_RANGE_FILE}"))
            counter = self._counters.get(domain)
            if counter is None or counter.range_uj != range_uj:
                counter = self._counters[domain] = EnergyCounter(range_uj)
            self._domains.append(counter)
            denied = denied or _is_denied(host, f"{directory}/energy_uj")
        limits: list[str] = []
        for domain, directory in domains.items():
            for limit, path in _limits(host, directory):
                columns.add(catalog.RAPL_POWER_LIMIT, Entity(entities.POWER_LIMIT, (domain, limit)))
                limits.append(path)
        self._keep(host, [f"{directory}/energy_uj" for directory in domains.values()], limits)
        return columns.result(_rapl_finding(list(domains), denied=denied))

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every counter, then every limit."""
        if not self._files:
            return
        energy, limits = self._files
        for column, counter in enumerate(self._domains):
            raw = answer_readings.parsed_reading(energy.text, column)
            now_ns = host.clock.now().boot_ns
            into.put(column, raw if isinstance(raw, Absent) else counter.advance(raw, now_ns))
        start = len(self._domains)
        for column in range(start, len(into.values)):
            limit = answer_readings.parsed_reading(limits.text, column - start)
            into.put(column, limit or Absent.UNSUPPORTED)  # 0: no limit is set


def _domains(host: Host) -> dict[str, str]:
    """Directories by the path of the domain, with its parents: package-0/core.

    Model-specific registers precede memory-mapped ones, which report the same packages.
    """
    zones = [zone for zone in fact_readers.list_names(host, POWERCAP_ROOT) if _ZONE.fullmatch(zone)]
    domains: dict[str, str] = {}
    for zone in sorted(zones, key=lambda zone: (zone.startswith("intel-rapl-mmio"), zone)):
        control, *numbers = zone.split(":")
        above = [":".join([control, *numbers[: depth + 1]]) for depth in range(len(numbers))]
        names = [fact_readers.read_text(host, f"{POWERCAP_ROOT}/{part}/name") for part in above]
        range_uj = fact_readers.read_text(host, f"{POWERCAP_ROOT}/{zone}/{_RANGE_FILE}")
        if all(names) and range_uj.isdecimal():
            domains.setdefault("/".join(names), f"{POWERCAP_ROOT}/{zone}")
    return domains


def _limits(host: Host, directory: str) -> list[tuple[str, str]]:
    limits: dict[str, str] = {}
    for file in fact_readers.list_names(host, directory):
        if match := re.fullmatch(r"constraint_(\d+)_power_limit_uw", file):
            name = fact_readers.read_text(host, f"{directory}/constraint_{match[1]}_name")
            if name and fact_readers.read_text(host, f"{directory}/{file}").strip("0"):
                limits.setdefault(name, f"{directory}/{file}")
    return list(limits.items())


def _is_denied(host: Host, path: str) -> bool:
    try:
        host.read(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _rapl_finding(domains: list[str], *, denied: bool) -> probe_result.ProbeFinding:
    subject = "energy of the processors"
    if not domains:
        detail = f"{POWERCAP_ROOT} contains no RAPL domain (usual in a VM)"
        return probe_result.ProbeFinding.absent(subject, detail)
    detail = f"{probe_result.format_count(len(domains), 'domain')}: {', '.join(domains)}"
    if denied:
        return probe_result.ProbeFinding(subject, probe_result.ProbeVerdict.DENIED, detail, _REMEDY)
    return probe_result.ProbeFinding.supported(subject, detail)
