"""Device that a call or a file is about, as class and name: one hung call delays only calls about its device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_INTERFACE_CLASSES = {"ethtool": "net", "netlink": "net"}
"""Host interfaces whose first argument names a device that also has files."""
MAX_CACHED_DEVICES = 2048
"""Far more than a node has. Names of files and of calls about processes are not limited in number."""
_NAME_OF_CLASS, _NAME_ON_BUS = 4, 5
"""Position of the device in the parts of /sys/class/CLASS/NAME and of /sys/bus/BUS/devices/NAME."""


def device_of_call(host_interface: str, function: str, arguments: Sequence[int | str]) -> str:
    """Return the device that a call is about; the function itself if it names none."""
    if not arguments:
        return f"{host_interface}.{function}"
    if function == "rdma_statistics":  # of an RDMA device: its files are in /sys/class/infiniband
        return f"infiniband/{arguments[0]}"
    return f"{_INTERFACE_CLASSES.get(host_interface, host_interface)}/{arguments[0]}"


def device_of_path(path: str) -> str:
    """Return the device of a file as class and name; the file itself if it names none.

    Other trees are divided at the first number: `/sys/devices/system/edac/mc/mc0`.
    """
    parts = path.split("/", 6)
    if path.startswith("/sys/class/") and len(parts) > _NAME_OF_CLASS:
        return f"{parts[3]}/{parts[4]}"
    if path.startswith("/sys/bus/") and len(parts) > _NAME_ON_BUS:
        return f"{parts[3]}/{parts[5]}"
    if path.startswith("/sys/block/"):
        return f"block/{parts[3]}"
    if path.startswith(("/sys/devices/", "/sys/kernel/debug/", "/proc/fs/")):
        parts = path.split("/")
        for position, part in enumerate(parts):
            # Device directories have a number (mc0, nvme1, 0000:9d:00.0); the directories above them are
            # shared.
            if any(map(str.isdigit, part)):
                return "/".join(parts[: position + 1])
    return path


device_of = lru_cache(MAX_CACHED_DEVICES)(device_of_path)
"""The same for files that are read repeatedly by their paths."""
