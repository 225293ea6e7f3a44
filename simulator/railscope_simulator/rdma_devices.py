"""RDMA ports in /sys/class/infiniband and in the kernel's RDMA interface by name, with their counters."""

from __future__ import annotations

import errno
from functools import lru_cache

from railscope.capture import CaptureMoment, Json, failure
from railscope_simulator import (
    device_models,
    driver_counters,
    fabric,
    host_files,
    node_hardware,
    node_model,
)

ROOT = "/sys/class/infiniband"
_LANE_SPEEDS = {100: "NDR", 50: "HDR", 25: "EDR"}
DOWN_RATE = "40 Gb/sec (4X QDR)"
"""Rate that mlx5 reports for a port that is down (linux: drivers/infiniband/hw/mlx5/main.c)."""
_GIDS = ("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")
"""Types of the first four: two of the link-local address, two of the IPv4 address."""
_GID_NUMBERS = ["0", "1", "2", "3"]
_MAX_GID_TABLES = 1 << 14


def show_rdma_devices(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the RDMA devices to a `CaptureMoment`."""
    cables, bridges = model.present_cables, model.machine.bridges
    into.names[ROOT] = sorted(
        [*(cable.port.rdma_device for cable in cables), *(b.rdma_device for b in bridges)]
    )
    paths = {device.address: device.path for device in model.machine.pci}
    for cable in cables:
        port = cable.port
        directory = f"{ROOT}/{port.rdma_device}"
        into.links[f"{directory}/device"] = paths[port.pci_address]
        into.names[f"{directory}/device/net"] = [port.interface]
        _show_files(into, directory, _device_files(cable))
        _show_gids(into, cable)
        counters = driver_counters.hw_counters(cable)
        _show_counters(into, directory, "counters", driver_counters.counters(cable))
        _show_counters(into, directory, "hw_counters", counters)
        # A file of sysfs only: the interface of netlink has no such counter.
        counters.pop("lifespan")
        call = f"netlink.rdma_statistics({port.rdma_device},1)"
        into.calls[call] = counters | driver_counters.optional_counters(cable)
    for bridge in bridges:
        _show_bridge(into, bridge, paths[bridge.pci_address])


def _show_files(into: CaptureMoment, directory: str, files: dict[str, str]) -> None:
    into.names[f"{directory}/ports"] = ["1"]
    into.names[f"{directory}/hw_counters"] = failure(OSError(errno.ENOENT, ""))
    host_files.show_files(into, directory, files)


def _show_counters(
    into: CaptureMoment, directory: str, group: str, values: dict[str, int] | None
) -> None:
    place = f"{directory}/ports/1/{group}"
    if values is None:
        into.names[place] = failure(OSError(errno.ENOENT, ""))
        return
    into.names[place] = sorted(values)
    host_files.show_files(into, place, values)


def _device_files(cable: fabric.Cable) -> dict[str, str]:
    port, nic = cable.port, cable.port.nic
    rate = f"{cable.gigabits} Gb/sec ({cable.lanes}X {_LANE_SPEEDS[port.gigabits // device_models.LANES]})"
    state = ("4: ACTIVE", "5: LinkUp", rate) if cable.up else ("1: DOWN", "3: Disabled", DOWN_RATE)
    board = {"board_id": nic.board_id} if nic.board_id else {}
    return _files(port, nic, board, (*state, "Ethernet"))


def _files(
    device: node_hardware.SimulatedPort | node_hardware.NvSwitchFunction,
    nic: device_models.NicModel,
    board: dict[str, str],
    state: tuple[str, str, str, str],
) -> dict[str, str]:
    """Return the files of a device; the state of its port is logical, physical, rate, link layer."""
    names = ("state", "phys_state", "rate", "link_layer")
    return {
        "fw_ver": nic.firmware,
        **board,
        "hca_type": nic.hca_type,
        "node_guid": device.guid,
        "sys_image_guid": device.guid,
        "node_type": "1: CA",
        "node_desc": device.rdma_device,
        **{f"ports/1/{name}": text for name, text in zip(names, state, strict=True)},
    }


def _show_gids(into: CaptureMoment, cable: fabric.Cable) -> None:
    """Add the GID table to a `CaptureMoment`."""
    port = cable.port
    place = f"{ROOT}/{port.rdma_device}/ports/1"
    for directory in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        into.names[f"{place}/{directory}"] = _GID_NUMBERS
    host_files.show_files(into, place, _gid_files(port.mac, port.interface))


@lru_cache(_MAX_GID_TABLES)
def _gid_files(mac: str, interface: str) -> dict[str, str]:
    """Return the addresses of the interface, by type."""
    octets = [int(octet, 16) for octet in mac.split(":")]
    interface_id = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]]).hex(":", 2)
    local = f"fe80:0000:0000:0000:{interface_id}"
    routed = f"0000:0000:0000:0000:0000:ffff:0a0a:{octets[-1]:04x}"
    files = {}
    for number, kind in zip(_GID_NUMBERS, _GIDS, strict=True):
        files[f"gids/{number}"] = local if number in "01" else routed
        files[f"gid_attrs/types/{number}"] = kind
        files[f"gid_attrs/ndevs/{number}"] = interface
    return files


def _show_bridge(into: CaptureMoment, bridge: node_hardware.NvSwitchFunction, path: Json) -> None:
    """Add a function that manages NVSwitches to a `CaptureMoment`: InfiniBand, and without traffic."""
    directory = f"{ROOT}/{bridge.rdma_device}"
    into.links[f"{directory}/device"] = path
    into.names[f"{directory}/device/net"] = failure(OSError(errno.ENOENT, ""))
    state = ("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "InfiniBand")
    files = _files(bridge, device_models.CONNECTX7, {"board_id": "MT_0000001130"}, state)
    _show_files(into, directory, files)
    _show_counters(into, directory, "counters", driver_counters.RDMA.counters.zeros)
    _show_counters(into, directory, "hw_counters", {"lifespan": 10})
    into.calls[f"netlink.rdma_statistics({bridge.rdma_device},1)"] = {}
