"""psutil for the live node or a copied tree; its answers are converted to plain dictionaries."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import psutil

from railscope.capture import Json

# File of /proc that a function needs. If it is missing, psutil would read the running node instead
# of the tree that it was pointed to.
_FILE_OF_FUNCTION = {
    "cpu_times": "stat",
    "cpu_count": "stat",
    "boot_time": "stat",
    "virtual_memory": "meminfo",
    "swap_memory": "meminfo",
    "disk_io_counters": "diskstats",
    "net_io_counters": "net/dev",
}


class PsutilCalls:
    """psutil pointed at the /proc of a root."""

    def __init__(self, proc: str) -> None:
        self._proc = proc

    def call(self, function: str) -> Json:
        """Return the answer of a psutil function. Raises OSError."""
        needed = _FILE_OF_FUNCTION[function]
        proc = self._proc
        if needed.startswith("net/") and not os.path.exists(f"{proc}/{needed}"):  # noqa: PTH110 - plain text paths
            proc = (
                f"{proc}/self"  # /proc/net links to it: a copied tree may have only one of the two
            )
        if not os.path.exists(f"{proc}/{needed}"):  # noqa: PTH110 - as above
            raise OSError(errno.ENOENT, f"{self._proc}/{needed} does not exist")
        psutil.PROCFS_PATH = proc  # process-wide: set before each call
        return _FUNCTIONS[function]()


def _as_dict(answer: Any) -> dict[str, Any]:
    return dict(answer._asdict())


def _each_as_dict(answers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: _as_dict(answer) for name, answer in answers.items()}


# nowrap=False: psutil's correction of wrapped counters keeps state; the agent corrects wraps
# itself.
_FUNCTIONS: dict[str, Callable[[], Json]] = {
    "cpu_times": lambda: _as_dict(psutil.cpu_times()),
    "cpu_count": lambda: len(psutil.cpu_times(percpu=True)),
    "boot_time": psutil.boot_time,
    "virtual_memory": lambda: _as_dict(psutil.virtual_memory()),
    "swap_memory": lambda: _as_dict(psutil.swap_memory()),
    "disk_io_counters": lambda: _each_as_dict(
        psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    ),
    "net_io_counters": lambda: _each_as_dict(
        psutil.net_io_counters(pernic=True, nowrap=False) or {}
    ),
}
