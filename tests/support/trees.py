"""Copied trees of real nodes, made complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shared import unpack_capture

PARTS = (
    "/proc/self$|/proc/26231/(mountstats|net/)|/proc/net/softnet_stat$|/sys/class/(powercap|nvme)"
    "|/sys/devices/pci0000:00/0000:00:02.1/0000:01:00.0/"
)
DRIVE = "sys/devices/pci0000:00/0000:00:02.1/0000:01:00.0/nvme/nvme0"


def server_tree(factory: pytest.TempPathFactory) -> Path:
    """Return the content of an archive of a copied /proc and /sys for the node's own sources.

    The archive has the directory of a hardware monitor and no link to it in /sys/class: it gets
    one.
    """
    root = unpack_capture("sysfs/procfs/tree.tar.gz", factory.mktemp("tree"), PARTS)
    link = root / "sys/class/hwmon/hwmon3"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(root / DRIVE / "hwmon3")
    return root
