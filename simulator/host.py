"""Data of psutil and /proc about the simulated node."""

from __future__ import annotations

from railscope.capture import Json, Moment
from simulator.machine import ETHERNET, KERNEL, LOGICAL_CPUS
from simulator.model import NodeModel
from simulator.port_counters import NEIGHBOUR_FRAME_BYTES
from simulator.server import MEMORY_BYTES, Pressure, Server, Traffic
from simulator.span import NS_PER_SECOND
from simulator.spec import NodeSpec

DISK = "nvme0n1"

_NS_PER_TICK = 10_000_000
_TICKS_PER_SECOND = 100
_SWAP_BYTES = 8 << 30
_BUFFERS_BYTES = 3 << 30
_KERNEL_BYTES = 11 << 30
_US_PER_MS = 1000
_ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    f"{ETHERNET}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    f"{ETHERNET}\t0000000A\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0\n"
)
"""The default route via 10.0.0.1, and the network itself (linux: net/ipv4/fib_trie.c)."""


def boot_seconds(spec: NodeSpec) -> int:
    """Boot time of the node, in whole seconds since 1970."""
    return (spec.started_wall_ns - spec.started_boot_ns) // NS_PER_SECOND


def show(model: NodeModel, into: Moment) -> None:
    """Add psutil's results and the files of /proc to a `Moment`."""
    server = model.server
    into.calls["psutil.cpu_times()"] = _cpu_times(server)
    into.calls["psutil.cpu_count()"] = LOGICAL_CPUS
    into.calls["psutil.boot_time()"] = float(boot_seconds(model.spec))
    into.calls["psutil.virtual_memory()"] = _memory(server)
    into.calls["psutil.swap_memory()"] = {
        "total": _SWAP_BYTES, "used": 0, "free": _SWAP_BYTES, "percent": 0.0, "sin": 0, "sout": 0,
    }  # fmt: skip
    into.calls["psutil.disk_io_counters()"] = {DISK: _disk(server)}
    into.calls["psutil.net_io_counters()"] = {
        name: _interface(traffic) for name, traffic in network(model).items()
    }
    load = " ".join(f"{average:.2f}" for average in server.load)
    into.files["/proc/loadavg"] = (
        f"{load} {server.running}/{server.processes} {server.last_process}\n"
    )
    for resource, pressure in server.pressure.items():
        into.files[f"/proc/pressure/{resource}"] = _pressure(pressure)
    into.files["/proc/net/route"] = _ROUTES
    into.files["/proc/sys/kernel/random/boot_id"] = f"{model.spec.boot_id}\n"
    into.files["/proc/sys/kernel/osrelease"] = f"{KERNEL}\n"
    into.files["/proc/sys/kernel/hostname"] = f"{model.spec.node}\n"


def _cpu_times(server: Server) -> Json:
    return {
        mode: amount_ns // _NS_PER_TICK / _TICKS_PER_SECOND
        for mode, amount_ns in server.cpu_ns.items()
    }


def _memory(server: Server) -> Json:
    cached = server.cached_bytes
    free = MEMORY_BYTES - _KERNEL_BYTES - server.job_memory_bytes - cached - _BUFFERS_BYTES
    available = free + cached // 2 + _BUFFERS_BYTES
    return {
        "total": MEMORY_BYTES,
        "available": available,
        "percent": round(100 * (MEMORY_BYTES - available) / MEMORY_BYTES, 1),
        "used": MEMORY_BYTES - available,
        "free": free,
        "active": server.job_memory_bytes // 2,
        "inactive": cached,
        "buffers": _BUFFERS_BYTES,
        "cached": cached,
        "shared": 1 << 30,
        "slab": 6 << 30,
    }


def _disk(server: Server) -> Json:
    disk = server.disk
    return {
        "read_count": disk.reads,
        "write_count": disk.writes,
        "read_bytes": disk.read_bytes,
        "write_bytes": disk.written_bytes,
        "read_time": disk.read_us // _US_PER_MS,
        "write_time": disk.write_us // _US_PER_MS,
        "read_merged_count": 0,
        "write_merged_count": 0,
        "busy_time": disk.busy_us // _US_PER_MS,
    }


def network(model: NodeModel) -> dict[str, Traffic]:
    """Return traffic of the kernel's own networking, which RDMA bypasses."""
    interfaces = dict(model.server.traffic)
    for cable in model.present_cables:
        frames = cable.counters.neighbour_frames
        size = frames * NEIGHBOUR_FRAME_BYTES
        interfaces[cable.port.interface] = Traffic(
            size, size, frames, frames, cable.counters.checksum_errors
        )
    return interfaces


def _interface(traffic: Traffic) -> Json:
    return {
        "bytes_sent": traffic.sent_bytes,
        "bytes_recv": traffic.received_bytes,
        "packets_sent": traffic.sent_packets,
        "packets_recv": traffic.received_packets,
        "errin": traffic.receive_errors,
        "errout": 0,
        "dropin": 0,
        "dropout": 0,
    }


def _pressure(pressure: Pressure) -> str:
    lines = (
        ("some", pressure.some_percent, pressure.some_us),
        ("full", pressure.full_percent, pressure.full_us),
    )
    return "".join(
        f"{kind} avg10={percent[0]:.2f} avg60={percent[1]:.2f} avg300={percent[2]:.2f}"
        f" total={total_us}\n"
        for kind, percent, total_us in lines
    )
