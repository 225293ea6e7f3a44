"""Devices that answers list: one that disappears from an answer may still be there.

A netlink dump that is cut short, or a driver that skips a sick device, lists fewer devices than
there are, and no call fails: the names in an answer are compared with earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling.answer_shapes import raise_malformed
from railscope_agent.sampling.answer_sizes import ACCEPTED_AFTER_NS

# Bounds the memory of an answer with ever new names; more than any node has.
MAX_DEVICES = 4096
_NVML_LEFT = {2, 6, 15, 16}
"""INVALID_ARGUMENT, NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED: answers about a device that has left."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Reader of the device names in an answer, and a second list of the same devices."""

    names: Callable[[Json], list[str]]
    find_present: Callable[[Host, Collection[str]], set[str]]
    """Return those devices that the second list contains."""
    fill: Callable[[Json, list[str]], Json] | None = None
    """Adds devices to an answer. Without it, the call fails if the list only became shorter; a shorter list
    with a new device is that of a repartitioned GPU.
    """
    is_seen_first: bool = False
    """The second list is used only for devices that it contained before: in a container its directories
    may be those of another system.
    """


@dataclass(slots=True)
class _Device:
    is_seen: bool
    missing_since_ns: int | None = None


class Rosters:
    """The devices in the answers of the calls of one family.

    An answer that lists devices may not lose one that the system still has. A device that is missing has
    left if a second, independent place lacks it too, or if it stays missing for `ACCEPTED_AFTER_NS`. Until
    then the answer is completed with a record without readings, or the call fails.
    """

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, _Device]] = {}

    def complete_answer(
        self,
        host: Host,
        host_interface: str,
        function: str,
        arguments: tuple[int | str, ...],
        answer: Json,
    ) -> Json:
        """Return an answer that lists devices with every known one. Raises NvmlError or OSError."""
        roster = ROSTERS[f"{host_interface}.{function}"]
        known_devices = self._devices.setdefault(f"{host_interface}.{function}{arguments}", {})
        names = roster.names(answer)
        if roster.fill is None and not known_devices.keys() >= set(names):
            # A repartitioned GPU has MIG devices with new names: the earlier ones are not expected back.
            known_devices.clear()
        hidden = _find_hidden(host, roster, known_devices, names)
        if not hidden:
            return answer
        return (
            roster.fill(answer, hidden)
            if roster.fill
            else raise_malformed(host_interface, function)
        )


def _find_hidden(
    host: Host,
    roster: Roster,
    known_devices: dict[str, _Device],
    names: Collection[str],
) -> list[str]:
    """Update the known devices; return those that an answer lacks and that have not left."""
    # The second list is read only for names that are new or missing: usually there are none, and it costs
    # nothing.
    new = [name for name in names if name not in known_devices][: MAX_DEVICES - len(known_devices)]
    missing = known_devices.keys() - names
    for name in known_devices.keys() - missing:
        known_devices[name].missing_since_ns = None
    checked = {*missing, *(new if roster.is_seen_first else ())}
    present = roster.find_present(host, checked) if checked else set()
    now_ns = host.clock.now().boot_ns
    for name in missing:
        device = known_devices[name]
        if device.missing_since_ns is None:
            device.missing_since_ns = now_ns
        # A device that the second list never contained cannot be missed there: only the time decides.
        has_left = device.is_seen and name not in present
        if has_left or now_ns - device.missing_since_ns >= ACCEPTED_AFTER_NS:
            del known_devices[name]
    for name in new:
        known_devices[name] = _Device(not roster.is_seen_first or name in present)
    return sorted(missing & known_devices.keys())


def _directory_check(path: str) -> Callable[[Host, Collection[str]], set[str]]:
    def find_present(host: Host, names: Collection[str]) -> set[str]:
        try:
            # A sysfs name cannot contain a slash: the kernel writes the disk cciss/c0d0 as cciss!c0d0.
            entries = {name.replace("!", "/") for name in host.names(path)}
        except FileNotFoundError:
            return set()
        except OSError:
            # An unreadable directory proves no absence: the devices are kept.
            return set(names)
        return entries.intersection(names)

    return find_present


def _answer_check(function: str) -> Callable[[Host, Collection[str]], set[str]]:
    """Return a check that finds the devices that have not left, by the answers of an NVML function."""

    def find_present(host: Host, names: Collection[str]) -> set[str]:
        return {name for name in names if _answers(host, function, name)}

    return find_present


def _answers(host: Host, function: str, name: str) -> bool:
    try:
        # Names of GPUs are indices, whose calls take integers; MIG devices are named by UUIDs.
        host.call("nvml", function, int(name) if name.isdecimal() else name)
    except FileNotFoundError:
        return False
    except NvmlError as error:
        # Any other failure is that of a sick device, which is still there.
        return error.code not in _NVML_LEFT
    except OSError:
        # The failure is not about the device, for example a hung call: it is kept.
        return True
    return True


def _table_with(answer: Json, names: list[str]) -> Json:
    return answer | {name: {} for name in names}


_INTERFACES = _directory_check("/sys/class/net")
ROSTERS: Mapping[str, Roster] = {
    "netlink.links": Roster(
        lambda answer: [link["name"] for link in answer], _INTERFACES,
        lambda answer, names: [*answer, *({"name": name} for name in names)], is_seen_first=True,
    ),
    "psutil.disk_io_counters": Roster(
        list, _directory_check("/sys/class/block"), _table_with, is_seen_first=True
    ),
    "psutil.net_io_counters": Roster(list, _INTERFACES, _table_with, is_seen_first=True),
    "nvml.nvmlDeviceGetCount": Roster(
        lambda answer: list(map(str, range(answer))), _answer_check("nvmlDeviceGetUUID"),
        lambda _, names: 1 + max(map(int, names)),
    ),
    "nvml.nvmlDeviceGetActiveVgpus": Roster(
        lambda answer: list(map(str, answer)), _answer_check("nvmlVgpuInstanceGetFbUsage")
    ),
    "nvml.nvmlDeviceGetMigDevices": Roster(
        lambda answer: [device["uuid"] for device in answer], _answer_check("nvmlDeviceGetName")
    ),
}  # fmt: skip
