"""NVMe drives: their identity, the state of their connection, and their health log.

Files: torvalds/linux drivers/nvme/host/sysfs.c. The log is read from the drive by a command, which
takes as long as the drive takes: the source runs on its own thread. A drive is identified by its
PCI address, a drive behind a network by the kernel's name for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter, methodcaller

from railscope.catalog import declare, entities, storage as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host, Json
from railscope_agent.sampling.answer_readings import parsed_reading, pick_reading
from railscope_agent.sources.scan_source import Found, ScanSource, called, facts, matching
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


class NvmeSource(ScanSource):
    """State and health of every NVMe drive."""

    name = "nvme"
    period_seconds = 60.0
    min_period_seconds = 1.0
    denied_remedy = "run the agent as root, or grant it CAP_SYS_ADMIN and access to /dev/nvme*"

    def readings(self, host: Host) -> Iterator[Found]:
        """Yield the state and the health log of each drive."""
        for match in matching(host, ROOT, _CONTROLLER):
            controller = match[0]
            drive = _entity(host, controller)
            yield (
                c.NVME_STATE,
                drive,
                parsed_reading(host.read, f"{ROOT}/{controller}/state", _parse_state),
            )
            log, reason = called(host, "nvme", "smart", controller)
            for metric, about, pick in _PICKS:
                yield metric, about(drive), reason or pick_reading(pick, log)


def _temperature(log: Json) -> Reading:
    kelvins = log["temperature_kelvins"]
    # 0 K means that the drive has no composite temperature (NVM Express base specification).
    return kelvins - _FREEZING_KELVINS if kelvins else Absent.UNSUPPORTED


def _warning(bit: int, log: Json) -> Reading:
    return int(log["critical_warning"]) >> bit & 1


_PICKS: tuple[tuple[declare.Metric, Callable[[Entity], Entity], Callable[[Json], Reading]], ...] = (
    (c.NVME_TEMPERATURE, lambda drive: drive, _temperature),
    *((metric, lambda drive: drive, itemgetter(name)) for name, metric in _NUMBERS.items()),
    *(
        (c.NVME_DATA, methodcaller("child", entities.NVME_DIRECTION, direction), itemgetter(name))
        for name, direction in _DIRECTIONS.items()
    ),
    *(
        (
            c.NVME_CRITICAL_WARNING,
            methodcaller("child", entities.NVME_WARNING, warning),
            partial(_warning, bit),
        )
        for bit, warning in enumerate(_WARNINGS)
    ),
)
"""Metric, entity and reading in the health log of a drive."""


def _parse_state(content: bytes) -> Reading:
    return _STATE_NUMBERS.get(content.decode(errors="replace").strip(), Absent.ERROR)


def _entity(host: Host, controller: str) -> Entity:
    directory = f"{ROOT}/{controller}"
    about = facts(
        host,
        directory,
        model="model",
        serial="serial",
        firmware="firmware_rev",
        transport="transport",
    )
    about["controller"] = controller
    if disks := sorted({match[1] + match[2] for match in matching(host, directory, _DISK)}):
        about["disks"] = ",".join(disks)
    return Entity(entities.NVME_DRIVE, (_address(host, directory) or controller,), about)


def _address(host: Host, directory: str) -> str:
    """PCI address of a drive; empty for a drive behind a network."""
    try:
        _, *addresses = pci_path(host.resolve(f"{directory}/device"))
    except OSError:
        return ""
    return addresses[-1] if addresses else ""
