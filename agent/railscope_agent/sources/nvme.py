"""NVMe drives: their identity, the state of their connection, and their health log.

Files: torvalds/linux drivers/nvme/host/sysfs.c. The log is read from the drive by a command, which
takes as long as the drive takes: the source runs on its own thread. A drive is identified by its
PCI address, a drive behind a network by the kernel's name for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from railscope.catalog import declare, entities, storage as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.topology.pci import pci_path

ROOT = "/sys/class/nvme"
_CONTROLLER = re.compile(r"nvme\d+")
_DISK = re.compile(r"(nvme\d+)(?:c\d+)?(n\d+)")  # nvme0c1n1 is a path to nvme0n1
_STATE_NUMBERS = {
    **{name: number for number, name in c.NVME_STATES.items()},
    "deleting (no IO)": 5,
    "reconnecting": 3,  # before Linux 4.18
}
_WARNINGS = ("spare", "temperature", "reliability", "read_only", "backup", "persistent_memory")
"""Bits of the critical warning, from the lowest on."""
_DIRECTIONS = {"data_units_read": "read", "data_units_written": "write"}
_NUMBERS: dict[str, declare.Metric] = {
    "used_percent": c.NVME_USED,
    "spare_percent": c.NVME_SPARE,
    "spare_limit_percent": c.NVME_SPARE_LIMIT,
    "media_errors": c.NVME_MEDIA_ERRORS,
    "logged_errors": c.NVME_LOGGED_ERRORS,
    "unsafe_shutdowns": c.NVME_UNSAFE_SHUTDOWNS,
    "power_cycles": c.NVME_POWER_CYCLES,
    "power_on_hours": c.NVME_POWER_ON_TIME,
    "busy_minutes": c.NVME_BUSY_TIME,
    "warm_minutes": c.NVME_WARM_TIME,
    "hot_minutes": c.NVME_HOT_TIME,
}
_FREEZING_KELVINS = 273
_HEALTH_COLUMNS = 1 + len(_NUMBERS) + len(_DIRECTIONS) + len(_WARNINGS)
_REMEDY = "run the agent as root, or grant it CAP_SYS_ADMIN and access to /dev/nvme*"


class NvmeSource(source.SourceWithoutResources):
    """State and health of every NVMe drive."""

    name = "nvme"
    family = "nvme"

    def __init__(self) -> None:
        self._controllers: list[str] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the drives. Support of the health log is determined at each read."""
        columns = probe_result.ColumnBuilder()
        self._controllers = list(filter(_CONTROLLER.fullmatch, fact_readers.list_names(host, ROOT)))
        findings = []
        for controller in self._controllers:
            drive = _entity(host, controller)
            columns.add_each((c.NVME_STATE, c.NVME_TEMPERATURE, *_NUMBERS.values()), drive)
            for direction in _DIRECTIONS.values():
                columns.add(c.NVME_DATA, drive.child(entities.NVME_DIRECTION, direction))
            for warning in _WARNINGS:
                columns.add(c.NVME_CRITICAL_WARNING, drive.child(entities.NVME_WARNING, warning))
            findings.append(_finding(host, controller, drive))
        if not findings:
            findings.append(
                probe_result.ProbeFinding.absent("NVMe drives", f"{ROOT} contains no drive")
            )
        return columns.result(*findings)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the state and the health log of each drive."""
        for position, controller in enumerate(self._controllers):
            start = position * (1 + _HEALTH_COLUMNS)
            state = answer_readings.parsed_reading(
                host.read, f"{ROOT}/{controller}/state", _parse_state
            )
            into.put(start, state)
            try:
                log = host.call("nvme", "smart", controller)
            except OSError as error:
                into.put_none(start + 1, _HEALTH_COLUMNS, reason_of(error))
            else:
                temperature = answer_readings.pick_reading(_temperature, log)
                numbers = (log.get(name, Absent.ERROR) for name in (*_NUMBERS, *_DIRECTIONS))
                picks = map(_warning, range(len(_WARNINGS)))
                warnings = (answer_readings.pick_reading(pick, log) for pick in picks)
                into.put_readings(start + 1, (temperature, *numbers, *warnings))


def _temperature(log: Json) -> Reading:
    kelvins = log["temperature_kelvins"]
    # 0 K means that the drive has no composite temperature (NVM Express base specification).
    return kelvins - _FREEZING_KELVINS if kelvins else Absent.UNSUPPORTED


def _warning(bit: int) -> Callable[[Json], Reading]:
    return lambda log: log["critical_warning"] >> bit & 1


def _parse_state(content: bytes) -> Reading:
    return _STATE_NUMBERS.get(content.decode(errors="replace").strip(), Absent.ERROR)


def _entity(host: Host, controller: str) -> Entity:
    directory = f"{ROOT}/{controller}"
    matches = map(_DISK.fullmatch, fact_readers.list_names(host, directory))
    facts = fact_readers.nonempty_facts(
        controller=controller,
        disks=",".join(sorted({match[1] + match[2] for match in matches if match})),
        model=fact_readers.read_text(host, f"{directory}/model"),
        serial=fact_readers.read_text(host, f"{directory}/serial"),
        firmware=fact_readers.read_text(host, f"{directory}/firmware_rev"),
        transport=fact_readers.read_text(host, f"{directory}/transport"),
    )
    return Entity(entities.NVME_DRIVE, (_address(host, directory) or controller,), facts)


def _address(host: Host, directory: str) -> str:
    """PCI address of a drive; empty for a drive behind a network."""
    try:
        _, *addresses = pci_path(host.resolve(f"{directory}/device"))
    except OSError:
        return ""
    return addresses[-1] if addresses else ""


def _finding(host: Host, controller: str, drive: Entity) -> probe_result.ProbeFinding:
    subject = f"drive {controller}"
    facts = [drive.facts.get(fact, "") for fact in ("model", "transport")]
    detail = ", ".join(filter(None, facts)) or "unknown model"
    try:
        host.call("nvme", "smart", controller)
    except OSError as error:
        if reason_of(error) is Absent.DENIED:
            detail += "; permission denied for its health log"
            return probe_result.ProbeFinding(
                subject, probe_result.ProbeVerdict.DENIED, detail, _REMEDY
            )
        detail += f"; without a health log: {error.strerror}"
        return probe_result.ProbeFinding.supported(subject, detail)
    return probe_result.ProbeFinding.supported(subject, f"{detail}, with a health log")
