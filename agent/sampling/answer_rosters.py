"""Rosters: an answer that lists devices may not lose one that the system still has.

A netlink dump that is cut short, or a driver that skips a sick device, lists fewer devices than there are,
and no call fails. So the names in each such answer are compared with those of earlier ones. A device
that is missing has left if a second, independent place lacks it too, or if it stays missing for
`ACCEPTED_AFTER_NS`. Until then the answer is completed with a record without readings, or the call fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from agent.host import Host, Json, NvmlError
from agent.sampling.answer_shapes import malformed
from agent.sampling.answer_sizes import ACCEPTED_AFTER_NS

MAX_DEVICES_OF_A_ROSTER = 4096
_NVML_LEFT = {2, 6, 15, 16}
"""INVALID_ARGUMENT, NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED: answers about a device that is no more."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Reader of the names in an answer, and a second place that lists or answers for a device."""

    names: Callable[[Json], list[str]]
    there: Callable[[Host, Collection[str]], set[str]]
    """Those of some devices that the second place has."""
    filled: Callable[[Json, list[str]], Json] | None = None
    """Put devices into an answer. Without it the call fails for a list that only became shorter; one
    with a new device describes a GPU that was divided again."""
    is_seen_first: bool = False
    """The second place counts for a device that it had before only: a container may
    show the directories of another system."""


@dataclass(slots=True)
class _Device:
    is_seen: bool
    missing_since_ns: int | None = None


class Rosters:
    """The devices in the answers of the calls of one family."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, _Device]] = {}

    def completed(
        self, host: Host, seam: str, function: str, arguments: tuple[int | str, ...], answer: Json
    ) -> Json:
        """Return an answer with every known device. Raises NvmlError or OSError."""
        roster = _ROSTERS.get(f"{seam}.{function}")
        if roster is None:
            return answer
        known = self._devices.setdefault(f"{seam}.{function}{arguments}", {})
        names = roster.names(answer)
        if roster.filled is None and not known.keys() >= set(names):
            known.clear()
        hidden = _hidden(host, roster, known, names)
        if not hidden:
            return answer
        return roster.filled(answer, hidden) if roster.filled else malformed(seam, function)


def _hidden(
    host: Host, roster: Roster, known: dict[str, _Device], names: Collection[str]
) -> list[str]:
    """Update the known devices; return those that an answer lacks and that have not left."""
    new = [name for name in names if name not in known][: MAX_DEVICES_OF_A_ROSTER - len(known)]
    missing = known.keys() - names
    for name in known.keys() - missing:
        known[name].missing_since_ns = None
    wanted = {*missing, *(new if roster.is_seen_first else ())}
    there = roster.there(host, wanted) if wanted else set()
    now_ns = host.clock.now().boot_ns
    for name in missing:
        device = known[name]
        if device.missing_since_ns is None:
            device.missing_since_ns = now_ns
        has_left = device.is_seen and name not in there
        if has_left or now_ns - device.missing_since_ns >= ACCEPTED_AFTER_NS:
            del known[name]
    for name in new:
        known[name] = _Device(not roster.is_seen_first or name in there)
    return sorted(missing & known.keys())


def _in_directory(path: str) -> Callable[[Host, Collection[str]], set[str]]:
    def there(host: Host, names: Collection[str]) -> set[str]:
        try:
            found = {name.replace("!", "/") for name in host.names(path)}
        except FileNotFoundError:
            return set()
        except OSError:
            return set(names)
        return found.intersection(names)

    return there


def _answering(function: str) -> Callable[[Host, Collection[str]], set[str]]:
    """The devices about which NVML answers, or fails otherwise than for a device that is no more."""

    def there(host: Host, names: Collection[str]) -> set[str]:
        return {name for name in names if _answers(host, function, name)}

    return there


def _answers(host: Host, function: str, name: str) -> bool:
    try:
        host.call("nvml", function, int(name) if name.isdecimal() else name)
    except FileNotFoundError:
        return False
    except NvmlError as error:
        return error.code not in _NVML_LEFT
    except OSError:
        return True
    return True


def _table_with(answer: Json, names: list[str]) -> Json:
    return answer | {name: {} for name in names}


_INTERFACES = _in_directory("/sys/class/net")
_ROSTERS: Mapping[str, Roster] = {
    "netlink.links": Roster(
        lambda answer: [link["name"] for link in answer], _INTERFACES,
        lambda answer, names: [*answer, *({"name": name} for name in names)], is_seen_first=True,
    ),
    "psutil.disk_io_counters": Roster(
        list, _in_directory("/sys/class/block"), _table_with, is_seen_first=True
    ),
    "psutil.net_io_counters": Roster(list, _INTERFACES, _table_with, is_seen_first=True),
    "nvml.nvmlDeviceGetCount": Roster(
        lambda answer: list(map(str, range(answer))), _answering("nvmlDeviceGetUUID"),
        lambda _, names: 1 + max(map(int, names)),
    ),
    "nvml.nvmlDeviceGetActiveVgpus": Roster(
        lambda answer: list(map(str, answer)), _answering("nvmlVgpuInstanceGetFbUsage")
    ),
    "nvml.nvmlDeviceGetMigDevices": Roster(
        lambda answer: [device["uuid"] for device in answer], _answering("nvmlDeviceGetName")
    ),
}  # fmt: skip
