"""PCI buses that a test assembles, device by device."""

from __future__ import annotations

from support.machine import FakeHost

DEVICES = "/sys/bus/pci/devices"
BRIDGE, GPU, ETHERNET, INFINIBAND, NVME = "0x060400", "0x030200", "0x020000", "0x020700", "0x010802"
NVIDIA, MELLANOX = "0x10de", "0x15b3"
CONNECTX7, BLUEFIELD3 = "0x1021", "0xa2dc"


def add_device(
    host: FakeHost,
    path: str,
    class_: str,
    model: tuple[str, str] = (NVIDIA, "0x2330"),
    **files: str,
) -> str:
    """Add a device and all bridges above it to the bus; its address is the last part of the path.

    The path starts at the host bridge: pci0000:15/0000:15:01.0/0000:16:00.0. `files` are those of
    the device; a NUMA node is that of the bridges, too.
    """
    bridge, *chain = path.split("/")
    for depth, address in enumerate(chain):
        place = "/".join(["/sys/devices", bridge, *chain[: depth + 1]])
        if f"{place}/class" not in host.files:
            host.links[f"{DEVICES}/{address}"] = place
            host.files |= {f"{place}/class": BRIDGE, f"{place}/vendor": "0x8086"}
            host.files[f"{place}/device"] = "0x352a"
        host.files[f"{place}/numa_node"] = files.get("numa_node", "-1")
    place = "/".join(["/sys/devices", bridge, *chain])
    reported = {"class": class_, "vendor": model[0], "device": model[1], **files}
    host.files |= {f"{place}/{name}": text for name, text in reported.items()}
    return chain[-1]


def set_link(host: FakeHost, address: str, now: str, most: str) -> None:
    """Set the link of a device or port: "32x16" is 32 GT/s with 16 lanes."""
    place = host.links[f"{DEVICES}/{address}"]
    for when, reported in (("current", now), ("max", most)):
        speed, width = reported.split("x")
        host.files[f"{place}/{when}_link_speed"] = f"{speed} GT/s PCIe"
        host.files[f"{place}/{when}_link_width"] = width


def remove_device(host: FakeHost, address: str) -> None:
    """Remove a device from the bus, with its files."""
    place = host.links.pop(f"{DEVICES}/{address}")
    host.files = {p: text for p, text in host.files.items() if not p.startswith(f"{place}/")}


def add_gpu(host: FakeHost, path: str, numa_node: str = "0") -> str:
    return add_device(host, path, GPU, numa_node=numa_node)


def add_nic(  # noqa: PLR0913 - each is a fact of a NIC
    host: FakeHost,
    path: str,
    name: str = "",
    *,
    interface: str = "",
    numa_node: str = "0",
    model: tuple[str, str] = (MELLANOX, CONNECTX7),
    link_layer: str = "InfiniBand",
) -> str:
    """Add a NIC with the names of its RDMA device and of its interface, if it has them."""
    class_ = INFINIBAND if link_layer == "InfiniBand" else ETHERNET
    address = add_device(host, path, class_, model, numa_node=numa_node)
    if name:
        name_rdma(host, name, address, link_layer)
    if interface:
        host.links[f"/sys/class/net/{interface}/device"] = f"/sys/devices/{path}"
    return address


def name_rdma(host: FakeHost, name: str, address: str, link_layer: str = "InfiniBand") -> None:
    directory = f"/sys/class/infiniband/{name}"
    host.links[f"{directory}/device"] = host.links[f"{DEVICES}/{address}"]
    host.files[f"{directory}/ports/1/link_layer"] = link_layer
    host.files[f"{directory}/ports/1/state"] = "4: ACTIVE"
    host.files[f"{directory}/ports/1/counters/port_xmit_packets"] = "1"
