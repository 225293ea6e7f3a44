"""Files of the simulated host: /proc with psutil's results, and /sys/bus/pci/devices.

/proc/driver/nvidia, for the GPUs bound to NVIDIA's driver, is in the form of
open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, nv_procfs_read_gpu_info. The driver reads
the UUID when it starts the GPU, and still reports it when the GPU is lost.

Vital product data of NICs, as in the PCI file `vpd` and in the RDMA device, has the format of the
PCI Local Bus Specification 3.0, appendix I. For a ConnectX-7 function that manages NVSwitches it
contains SW_MNG, by which the NVIDIA Fabric Manager finds it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from railscope.capture import CaptureMoment, Json, failure
from railscope.timestamps import SECOND_NS
from railscope_simulator import (
    device_models,
    fabric,
    host_activity,
    nfs_mounts,
    node_hardware,
    node_model,
    pci_layout,
)
from railscope_simulator.port import NEIGHBOUR_FRAME_BYTES

DISK = "nvme0n1"

_NS_PER_TICK = 10_000_000
_TICKS_PER_SECOND = 100
_SWAP_BYTES = 8 << 30
_BUFFERS_BYTES = 3 << 30
_KERNEL_BYTES = 11 << 30
_US_PER_MS = 1000
_MAX_DEVICE_STATES = 1 << 10
"""Cached states of PCI devices, which are the same on most nodes."""
_ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    f"{node_hardware.ETHERNET}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    f"{node_hardware.ETHERNET}\t0000000A\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0\n"
)
"""The default route via 10.0.0.1, and the network itself (linux: net/ipv4/fib_trie.c)."""


def show_files(into: CaptureMoment, directory: str, files: Mapping[str, Json]) -> None:
    """Add files of one line below a directory; a failure to read one is added as it is."""
    into.files |= _as_files(directory, files)


def _as_files(directory: str, files: Mapping[str, Json]) -> dict[str, Json]:
    return {
        f"{directory}/{name}": content if isinstance(content, dict) else f"{content}\n"
        for name, content in files.items()
    }


def show_host(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add psutil's results and the files of /proc to a `CaptureMoment`."""
    server = model.server
    into.calls["psutil.cpu_times()"] = {
        mode: amount_ns // _NS_PER_TICK / _TICKS_PER_SECOND
        for mode, amount_ns in server.cpu_ns.items()
    }
    into.calls["psutil.cpu_count()"] = node_hardware.LOGICAL_CPUS
    boot_ns = model.spec.started_wall_ns - model.spec.started_boot_ns
    into.calls["psutil.boot_time()"] = float(boot_ns // SECOND_NS)
    into.calls["psutil.virtual_memory()"] = _memory(server)
    into.calls["psutil.swap_memory()"] = {
        "total": _SWAP_BYTES,
        "used": 0,
        "free": _SWAP_BYTES,
        "percent": 0.0,
        "sin": 0,
        "sout": 0,
    }
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
    into.files |= nfs_mounts.mount_files(model.mounts)
    into.files["/proc/net/route"] = _ROUTES
    kernel = {"osrelease": node_hardware.KERNEL, "hostname": model.spec.node}
    show_files(into, "/proc/sys/kernel", {"random/boot_id": model.spec.boot_id, **kernel})


def _memory(server: host_activity.HostState) -> Json:
    cached = server.cached_bytes
    free = (
        host_activity.MEMORY_BYTES
        - _KERNEL_BYTES
        - server.job_memory_bytes
        - cached
        - _BUFFERS_BYTES
    )
    available = free + cached // 2 + _BUFFERS_BYTES
    return {
        "total": host_activity.MEMORY_BYTES,
        "available": available,
        "percent": round(
            100 * (host_activity.MEMORY_BYTES - available) / host_activity.MEMORY_BYTES, 1
        ),
        "used": host_activity.MEMORY_BYTES - available,
        "free": free,
        "active": server.job_memory_bytes // 2,
        "inactive": cached,
        "buffers": _BUFFERS_BYTES,
        "cached": cached,
        "shared": 1 << 30,
        "slab": 6 << 30,
    }


def _disk(server: host_activity.HostState) -> Json:
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


def network(model: node_model.NodeModel) -> dict[str, host_activity.InterfaceTraffic]:
    """Return traffic of the kernel's own networking, which RDMA bypasses."""
    interfaces = dict(model.server.traffic)
    for cable in model.present_cables:
        frames = cable.counters.neighbour_frames
        size = frames * NEIGHBOUR_FRAME_BYTES
        interfaces[cable.port.interface] = host_activity.InterfaceTraffic(
            size, size, frames, frames, cable.counters.checksum_errors
        )
    return interfaces


def _interface(traffic: host_activity.InterfaceTraffic) -> Json:
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


def _pressure(pressure: host_activity.PressureStall) -> str:
    lines = (
        ("some", pressure.some_percent, pressure.some_us),
        ("full", pressure.full_percent, pressure.full_us),
    )
    return "".join(
        f"{kind} avg10={percent[0]:.2f} avg60={percent[1]:.2f} avg300={percent[2]:.2f}"
        f" total={total_us}\n"
        for kind, percent, total_us in lines
    )


_FIRST_INTERRUPT = 300


def show_driver_files(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add a file for each GPU to a `CaptureMoment`."""
    for gpu in model.machine.gpus:
        path = f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information"
        into.files[path] = (
            f"Model: \t\t {model.machine.model.name}\n"
            f"IRQ:   \t\t {_FIRST_INTERRUPT + gpu.index}\n"
            f"GPU UUID: \t {gpu.uuid}\n"
            f"Bus Location: \t {gpu.pci_address}\n"
            f"Device Minor: \t {gpu.index}\n"
        )


_NAME_TAG, _READ_ONLY_TAG, _END_TAG = 0x82, 0x90, 0x78
_BRIDGE_NAME, _BRIDGE_MARK = "Nvidia ConnectX-7 NVLink switch management", "SW_MNG"


def show_vital_data(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the data of all NICs to a `CaptureMoment`."""
    for cable in model.present_cables:
        port = cable.port
        _show(into, port.pci_address, port.rdma_device, _nic_vital_data(port.nic, port.mac))
    for bridge in model.machine.bridges:
        keywords = {"PN": "SSS7A28517", "SN": bridge.guid.replace(":", ""), "VA": _BRIDGE_MARK}
        data = _data(_BRIDGE_NAME, keywords)
        _show(into, bridge.pci_address, bridge.rdma_device, data)


def _show(into: CaptureMoment, pci_address: str, rdma_device: str, data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    into.files[f"/sys/bus/pci/devices/{pci_address}/vpd"] = text
    into.files[f"/sys/class/infiniband/{rdma_device}/device/vpd"] = text


def _nic_vital_data(nic: device_models.NicModel, mac: str) -> bytes:
    part = "MCX75310AAS-NEAT" if nic is device_models.CONNECTX7 else nic.name
    return _data(f"{nic.name} adapter card", {"PN": part, "SN": mac.replace(":", "").upper()})


def _data(name: str, keywords: dict[str, str]) -> bytes:
    """Encode a name and keywords, followed by the checksum over all of it."""
    fields = b"".join(
        keyword.encode() + bytes([len(text)]) + text.encode() for keyword, text in keywords.items()
    )
    length = len(fields) + len(b"RV\1\0")
    head = bytes([_NAME_TAG]) + len(name).to_bytes(2, "little") + name.encode()
    head += bytes([_READ_ONLY_TAG]) + length.to_bytes(2, "little") + fields + b"RV\1"
    return head + bytes([-sum(head) % 256, _END_TAG])


SPEEDS = {2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
LOST_WIDTH = 63
"""Link width that the kernel reads from a device with all register bits set."""

_CORRECTABLE = (
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF",
)  # fmt: skip
_UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP",
    "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked",
    "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip
_SURPRISE_DOWN = {"SDES": 1}
_NOTHING_THERE = {"current_link_speed": "2.5 GT/s PCIe", "current_link_width": 0}
"""Link of a port after its downstream device has vanished."""


def show_pci_devices(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the PCI devices to a `CaptureMoment`."""
    lost = {
        model.machine.gpus[index].pci_address
        for index, silicon in enumerate(model.gpus)
        if silicon.lost
    }
    cables = {cable.port.pci_address: cable for cable in model.cables}
    removed = {address for address, cable in cables.items() if cable.removed}
    # The device below a port is at the other end of its link, and determines the link's state.
    below = {device.path.split("/")[-2]: device.address for device in model.machine.pci}
    present = [device for device in model.machine.pci if device.address not in removed]
    root = "/sys/bus/pci/devices"
    into.names[root] = [device.address for device in present]
    for device in present:
        directory = f"{root}/{device.address}"
        into.links[directory] = device.path
        into.links[f"{directory}/driver"] = f"/sys/bus/pci/drivers/{device.driver}"
        downstream = below.get(device.address, "")
        nic_cable = cables.get(device.address)
        cable = None if downstream in removed else nic_cable or cables.get(downstream)
        state = _PciState(
            device.address in lost,
            downstream in removed,
            downstream in lost,
            _degraded_link(device, cable) if cable else None,
            nic_cable.counters.pcie_errors if nic_cable else None,
        )
        into.files |= _device_files(device, state)
    show_vital_data(model, into)


class _PciState(NamedTuple):
    """State of a PCI device: lost, with a device below it that was removed or lost.

    `link` is the speed and the width if a NIC limits them, `errors` are the corrected errors of a NIC.
    """

    is_lost: bool
    is_empty: bool
    is_above_lost: bool
    link: tuple[str, int] | None
    errors: int | None


@lru_cache(_MAX_DEVICE_STATES)
def _device_files(device: pci_layout.SimulatedPciDevice, state: _PciState) -> dict[str, Json]:
    """Return the files of a device."""
    files = _facts(device)
    files |= _link(device, lost=state.is_lost)
    if state.is_empty:
        files |= _NOTHING_THERE
    elif state.link:
        files |= zip(_NOTHING_THERE, state.link, strict=True)
    corrected = {} if state.errors is None else {"BadTLP": state.errors}
    fatal = _SURPRISE_DOWN if state.is_above_lost or state.is_empty else {}
    files |= _errors(device, corrected=corrected, fatal=fatal)
    return _as_files(f"/sys/bus/pci/devices/{device.address}", files)


def _facts(device: pci_layout.SimulatedPciDevice) -> dict[str, Json]:
    return {
        "vendor": f"0x{device.vendor:04x}",
        "device": f"0x{device.device:04x}",
        "class": f"0x{device.pci_class:06x}",
        "numa_node": device.numa_node,
        "local_cpulist": node_hardware.CPU_LISTS[device.numa_node],
        "power_state": "D0",
    }


def _link(device: pci_layout.SimulatedPciDevice, *, lost: bool) -> dict[str, Json]:
    """Return the link between a device and its upstream port, if it has one."""
    if not device.generation:
        absent = failure(OSError(errno.ENOENT, ""))
        return dict.fromkeys(
            ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"), absent
        )
    speed = SPEEDS[device.generation]
    return {
        "current_link_speed": "Unknown" if lost else speed,
        "current_link_width": LOST_WIDTH if lost else device.lanes,
        "max_link_speed": speed,
        "max_link_width": device.lanes,
    }


def _degraded_link(device: pci_layout.SimulatedPciDevice, cable: fabric.Cable) -> tuple[str, int]:
    """Return a NIC's link at either end: limited to that of the NIC, or half of it."""
    nic = cable.port.nic
    generation, lanes = min(device.generation, nic.pcie_generation), nic.pcie_lanes
    if cable.pcie_halved == "speed":
        generation -= 1
    elif cable.pcie_halved == "lanes":
        lanes //= 2
    return SPEEDS[generation], lanes


def _errors(
    device: pci_layout.SimulatedPciDevice, *, corrected: dict[str, int], fatal: dict[str, int]
) -> dict[str, Json]:
    if not device.generation:
        names = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
        return dict.fromkeys(names, failure(OSError(errno.ENOENT, "")))
    return {
        "aer_dev_correctable": _table(_CORRECTABLE, "TOTAL_ERR_COR", corrected),
        "aer_dev_nonfatal": _table(_UNCORRECTABLE, "TOTAL_ERR_NONFATAL", {}),
        "aer_dev_fatal": _table(_UNCORRECTABLE, "TOTAL_ERR_FATAL", fatal),
    }


def _table(names: tuple[str, ...], total: str, counts: dict[str, int]) -> str:
    lines = [f"{name} {counts.get(name, 0)}" for name in names]
    return "\n".join([*lines, f"{total} {sum(counts.values())}"])
