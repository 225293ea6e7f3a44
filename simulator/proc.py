"""Files of /proc, reconstructed from psutil's results: the inverse of psutil's parsing."""

from __future__ import annotations

from collections.abc import Callable

from railscope.capture import Json
from simulator.server import MODES

_TICKS_PER_SECOND = 100
_SECTOR_BYTES = 512


def proc_files(calls: dict[str, Json]) -> dict[str, str]:
    """Return the files that these results determine, by path."""
    files = {}
    for path, (needed, write) in _WRITERS.items():
        answers = [calls.get(f"psutil.{function}()") for function in needed]
        if all(answer is not None and not _failed(answer) for answer in answers):
            files[path] = write(*answers)
    return files


def _failed(answer: Json) -> bool:
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
