"""NVMe drives: their identity, the state of their connection, and their health log.

Files: torvalds/linux drivers/nvme/host/sysfs.c. The log is read from the drive by a command, which
takes as long as the drive takes: the source runs on its own thread. A drive is identified by its
PCI address, a drive behind a network by the kernel's name for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent.host import Host, Json
from agent.sampling import source
from agent.topology.pci import pci_path
from railscope.catalog import declare, entities, storage as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, reason_of

ROOT = "/sys/class/nvme"
_CONTROLLER = re.compile(r"nvme\d+")
_DISK = re.compile(r"(nvme\d+)(?:c\d+)?(n\d+)")  # nvme0c1n1 is a path to nvme0n1
_STATE_WORDS = {
    **{name: number for number, name in c.NVME_STATES.items()},
    "deleting (no IO)": 5,
    "reconnecting": 3,  # before Linux 4.18
}
_WARNINGS = (
    "spare",
    "temperature",
    "reliability",
    "read_only",
    "backup",
    "persistent_memory",
)
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

    def __init__(self, period_seconds: float = 60.0) -> None:
        self.period_seconds = period_seconds
        self._controllers: list[str] = []

    def probe(self, host: Host) -> source.ProbeResult:
        """Find the drives. Support of the health log is determined at each read."""
        columns = source.ColumnBuilder()
        self._controllers = []
        findings = []
        for controller in source.list_names(host, ROOT):
            if not _CONTROLLER.fullmatch(controller):
                continue
            entity = _entity(host, controller)
            self._controllers.append(controller)
            _add(columns, entity)
            findings.append(_finding(host, controller, entity))
        if not findings:
            findings.append(
                source.ProbeFinding(
                    "NVMe drives", source.ProbeVerdict.ABSENT, f"{ROOT} contains no drive"
                )
            )
        return source.ProbeResult(tuple(columns.columns), (), tuple(findings))

    def read(self, host: Host, into: source.RowBuilder) -> None:
        """Read the state and the health log of each drive."""
        width = 1 + _HEALTH_COLUMNS
        for position, controller in enumerate(self._controllers):
            start = position * width
            into.put(start, _state(host, controller))
            try:
                log = host.call("nvme", "smart", controller)
            except OSError as error:
                into.put_none(start + 1, _HEALTH_COLUMNS, reason_of(error))
                continue
            for column, reading in enumerate(_health(log), start + 1):
                into.put(column, reading)


def _add(columns: source.ColumnBuilder, drive: Entity) -> None:
    """Add the columns of a drive: state, temperature, numbers, directions, warnings."""
    columns.add(c.NVME_STATE, drive)
    columns.add(c.NVME_TEMPERATURE, drive)
    for metric in _NUMBERS.values():
        columns.add(metric, drive)
    for direction in _DIRECTIONS.values():
        columns.add(c.NVME_DATA, drive.part(entities.NVME_DIRECTION, direction))
    for warning in _WARNINGS:
        columns.add(c.NVME_CRITICAL_WARNING, drive.part(entities.NVME_WARNING, warning))


def _health(log: Json) -> list[Reading]:
    """Readings of a health log, in the order of the columns."""
    return [
        source.pick_reading(_temperature, log),
        *(log.get(name, Absent.ERROR) for name in (*_NUMBERS, *_DIRECTIONS)),
        *(source.pick_reading(_warning(bit), log) for bit in range(len(_WARNINGS))),
    ]


def _temperature(log: Json) -> Reading:
    kelvins = log["temperature_kelvins"]
    return kelvins - _FREEZING_KELVINS if kelvins else Absent.UNSUPPORTED


def _warning(bit: int) -> Callable[[Json], Reading]:
    return lambda log: log["critical_warning"] >> bit & 1


def _state(host: Host, controller: str) -> Reading:
    try:
        state = host.read(f"{ROOT}/{controller}/state").decode(errors="replace").strip()
    except OSError as error:
        return reason_of(error)
    return _STATE_WORDS.get(state, Absent.ERROR)


def _entity(host: Host, controller: str) -> Entity:
    directory = f"{ROOT}/{controller}"
    matches = map(_DISK.fullmatch, source.list_names(host, directory))
    facts = source.nonempty_facts(
        controller=controller,
        disks=",".join(sorted({match[1] + match[2] for match in matches if match})),
        model=source.read_text(host, f"{directory}/model"),
        serial=source.read_text(host, f"{directory}/serial"),
        firmware=source.read_text(host, f"{directory}/firmware_rev"),
        transport=source.read_text(host, f"{directory}/transport"),
    )
    return Entity(entities.NVME_DRIVE, (_address(host, directory) or controller,), facts)


def _address(host: Host, directory: str) -> str:
    """PCI address of a drive; empty for a drive behind a network."""
    try:
        _, *addresses = pci_path(host.resolve(f"{directory}/device"))
    except OSError:
        return ""
    return addresses[-1] if addresses else ""


def _finding(host: Host, controller: str, drive: Entity) -> source.ProbeFinding:
    what = f"drive {controller}"
    facts = [drive.facts.get(fact, "") for fact in ("model", "transport")]
    detail = ", ".join(filter(None, facts)) or "unknown model"
    try:
        host.call("nvme", "smart", controller)
    except OSError as error:
        reason = reason_of(error)
        if reason is Absent.DENIED:
            return source.ProbeFinding(
                what,
                source.ProbeVerdict.DENIED,
                f"{detail}; permission denied for its health log",
                _REMEDY,
            )
        return source.ProbeFinding(
            what, source.ProbeVerdict.SUPPORTED, f"{detail}; without a health log: {error.strerror}"
        )
    return source.ProbeFinding(what, source.ProbeVerdict.SUPPORTED, f"{detail}, with a health log")
