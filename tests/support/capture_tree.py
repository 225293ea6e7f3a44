"""Capture as a tree of files and links, for programs with a configurable root directory.

Links are relative, so that the tree can be moved. Device files are written at the targets of the
capture's links, as in sysfs. The kernel log becomes `/dev/kmsg`, and psutil's results become the
files of `/proc` that psutil and others read, by the inverse of psutil's parsing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from railscope.capture import SECTIONS, Capture, CaptureError, Json
from railscope_simulator.host_activity import MODES

_TICKS_PER_SECOND = 100
_SECTOR_BYTES = 512


def proc_files(calls: dict[str, Json]) -> dict[str, str]:
    """Return the files that these results determine, by path."""
    files = {}
    for path, (needed, write) in _WRITERS.items():
        answers = [calls.get(f"psutil.{function}()") for function in needed]
        if all(answer is not None and not _has_failed_call(answer) for answer in answers):
            files[path] = write(*answers)
    return files


def _has_failed_call(answer: Json) -> bool:
    return isinstance(answer, dict) and set(answer) == {"error"}


def _stat(times: Json, cpus: Json, boot_time: Json) -> str:
    ticks = [round(times.get(mode, 0.0) * _TICKS_PER_SECOND) for mode in MODES]
    shares = [amount // cpus for amount in ticks]
    first = [amount - share * (cpus - 1) for amount, share in zip(ticks, shares, strict=True)]
    lines = [f"cpu  {_row(ticks)}", f"cpu0 {_row(first)}"]
    lines += [f"cpu{number} {_row(shares)}" for number in range(1, cpus)]
    return "\n".join([*lines, "intr 0", "ctxt 0", f"btime {round(boot_time)}", ""])


def _row(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def _meminfo(memory: Json, swap: Json) -> str:
    rows = (
        ("MemTotal", memory["total"]),
        ("MemFree", memory["free"]),
        ("MemAvailable", memory["available"]),
        ("Buffers", memory["buffers"]),
        ("Cached", memory["cached"]),
        ("Active", memory["active"]),
        ("Inactive", memory["inactive"]),
        ("Shmem", memory["shared"]),
        ("Slab", memory["slab"]),
        ("SReclaimable", 0),
        ("SwapTotal", swap["total"]),
        ("SwapFree", swap["free"]),
    )
    return "".join(f"{name + ':':<16}{amount // 1024:>12} kB\n" for name, amount in rows)


def _vmstat(swap: Json) -> str:
    return f"pswpin {swap['sin'] // 4096}\npswpout {swap['sout'] // 4096}\n"


def _diskstats(disks: Json) -> str:
    return "".join(
        f" 259 {2 * number:7d} {name} "
        + _row(
            [
                disk["read_count"],
                disk["read_merged_count"],
                disk["read_bytes"] // _SECTOR_BYTES,
                disk["read_time"],
                disk["write_count"],
                disk["write_merged_count"],
                disk["write_bytes"] // _SECTOR_BYTES,
                disk["write_time"],
                0,
                disk["busy_time"],
                disk["read_time"] + disk["write_time"],
            ]
        )
        + "\n"
        for number, (name, disk) in enumerate(disks.items())
    )


def _net_dev(interfaces: Json) -> str:
    head = (
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast"
        "|bytes packets errs drop fifo colls carrier compressed\n"
    )
    return head + "".join(
        f"{name:>6}: "
        + _row([seen["bytes_recv"], seen["packets_recv"], seen["errin"], seen["dropin"]])
        + " 0 0 0 0 "
        + _row([seen["bytes_sent"], seen["packets_sent"], seen["errout"], seen["dropout"]])
        + " 0 0 0 0\n"
        for name, seen in interfaces.items()
    )


_WRITERS: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "/proc/stat": (("cpu_times", "cpu_count", "boot_time"), _stat),
    "/proc/meminfo": (("virtual_memory", "swap_memory"), _meminfo),
    "/proc/vmstat": (("swap_memory",), _vmstat),
    "/proc/diskstats": (("disk_io_counters",), _diskstats),
    "/proc/net/dev": (("net_io_counters",), _net_dev),
}


def write_tree(capture: Capture, directory: Path, offset_ns: int | None = None) -> None:
    """Write the state of a node at an offset, or at the end, below a directory.

    A tree of an earlier offset in the same directory is updated. Reads that failed are omitted. Raises
    CaptureError for a path that leads out of the directory.
    """
    state, log = _state(capture, offset_ns)
    tree = _TreeWriter(directory)
    for path, target in sorted(state["links"].items()):
        if not _is_failed(target):
            tree.link(path, target)
    files = proc_files(state["calls"]) | {"/dev/kmsg": "".join(log)} | state["files"]
    for path, text in files.items():
        if not _is_failed(text):
            tree.write(path, text)
    for path, entries in state["names"].items():
        if not _is_failed(entries):
            tree.fill(path, entries)


def _state(capture: Capture, offset_ns: int | None) -> tuple[dict[str, dict[str, Json]], list[str]]:
    """Return the state at an offset, by section, and the lines of the log until then."""
    state: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}
    log: list[str] = []
    for moment in capture.moments:
        if offset_ns is not None and moment.offset_ns > offset_ns:
            break
        for section in SECTIONS:
            state[section].update(getattr(moment, section))
        log += [f"{record}\n" for record in moment.log]
    return state, log


def _is_failed(stored: Json) -> bool:
    return isinstance(stored, dict)


class _TreeWriter:
    """Tree writer. Links must be created before the files behind them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._links: dict[PurePosixPath, PurePosixPath] = {}

    def link(self, path: str, target: str) -> None:
        """Create a link, and a directory at its target."""
        place, end = self._place(path, follow_last=False), PurePosixPath(target)
        self._links[place] = end
        to = self._real(end)
        to.mkdir(parents=True, exist_ok=True)
        at = self._real(place)
        at.parent.mkdir(parents=True, exist_ok=True)
        if at.is_symlink():
            at.unlink()
        at.symlink_to(os.path.relpath(to, at.parent))

    def write(self, path: str, text: str) -> None:
        """Create a file, or replace its content."""
        real = self._real(self._place(path))
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text, encoding="utf-8", errors="surrogateescape")

    def fill(self, path: str, entries: list[str]) -> None:
        """Create directories for those entries of a directory that have no recorded content.

        Existing files that are no longer entries are removed.
        """
        real = self._real(self._place(path))
        for entry in entries:
            if not (real / entry).exists():
                (real / entry).mkdir(parents=True)
        for gone in {found.name for found in real.iterdir()} - set(entries):
            if (real / gone).is_dir() and not (real / gone).is_symlink():
                shutil.rmtree(real / gone)
            else:
                (real / gone).unlink()

    def _place(self, path: str, *, follow_last: bool = True) -> PurePosixPath:
        """Resolve a path through the links on the way."""
        names = PurePosixPath(path).parts
        place = PurePosixPath(names[0])
        for number, name in enumerate(names[1:], start=1):
            place /= name
            if follow_last or number < len(names) - 1:
                place = self._links.get(place, place)
        return place

    def _real(self, place: PurePosixPath) -> Path:
        if not place.is_absolute() or ".." in place.parts:
            message = f"invalid path {place}: expected one inside the tree"
            raise CaptureError(message)
        return self._directory / place.relative_to("/")
