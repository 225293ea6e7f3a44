"""Copied trees of real nodes, made complete."""

from __future__ import annotations

PARTS = (
    "/proc/self$|/proc/26231/(mountstats|net/)|/proc/net/softnet_stat$|/sys/class/(powercap|nvme)"
    "|/sys/devices/pci0000:00/0000:00:02.1/0000:01:00.0/"
)
