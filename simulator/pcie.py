"""/sys/bus/pci/devices of the simulated node."""

from __future__ import annotations

import errno

from railscope.capture import Json, Moment, failure
from simulator.fabric import Cable
from simulator.machine import CPU_LISTS
from simulator.model import NodeModel
from simulator.pci_layout import PciDevice
from simulator.vital_data import show_vital_data

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


def show(model: NodeModel, into: Moment) -> None:
    """Add the PCI devices to a `Moment`."""
    lost = {
        model.machine.gpus[index].pci_address
        for index, silicon in enumerate(model.gpus)
        if silicon.lost
    }
    cables = {cable.port.pci_address: cable for cable in model.cables}
    removed = {address for address, cable in cables.items() if cable.removed}
    below = {device.parent_address: device.address for device in model.machine.pci}
    present = [device for device in model.machine.pci if device.address not in removed]
    root = "/sys/bus/pci/devices"
    into.names[root] = [device.address for device in present]
    for device in present:
        directory = f"{root}/{device.address}"
        into.links[directory] = device.path
        into.links[f"{directory}/driver"] = f"/sys/bus/pci/drivers/{device.driver}"
        under = below.get(device.address, "")
        card = cables.get(device.address)
        files = _facts(device)
        files |= _link(device, lost=device.address in lost)
        if under in removed:
            files |= _NOTHING_THERE
        elif card or under in cables:
            files |= _degraded(device, cables[device.address if card else under])
        files |= _errors(
            device,
            corrected={"BadTLP": card.counters.pcie_errors} if card else {},
            fatal=_SURPRISE_DOWN if under in lost | removed else {},
        )
        for name, content in files.items():
            failed = isinstance(content, dict)
            into.files[f"{directory}/{name}"] = content if failed else f"{content}\n"
    show_vital_data(model, into)


def _facts(device: PciDevice) -> dict[str, Json]:
    return {
        "vendor": f"0x{device.vendor:04x}",
        "device": f"0x{device.device:04x}",
        "class": f"0x{device.pci_class:06x}",
        "numa_node": device.numa_node,
        "local_cpulist": CPU_LISTS[device.numa_node],
        "power_state": "D0",
    }


def _link(device: PciDevice, *, lost: bool) -> dict[str, Json]:
    """Return the link between a device and its upstream port, if it has one."""
    if not device.generation:
        absent = failure(OSError(errno.ENOENT, ""))
        return dict.fromkeys(
            ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"),
            absent,
        )
    speed = SPEEDS[device.generation]
    return {
        "current_link_speed": "Unknown" if lost else speed,
        "current_link_width": LOST_WIDTH if lost else device.lanes,
        "max_link_speed": speed,
        "max_link_width": device.lanes,
    }


def _degraded(device: PciDevice, card: Cable) -> dict[str, Json]:
    """Return a NIC's link at either end: limited to that of the NIC, or half of it."""
    nic = card.port.nic
    generation, lanes = min(device.generation, nic.pcie_generation), nic.pcie_lanes
    if card.pcie_halved == "speed":
        generation -= 1
    elif card.pcie_halved == "lanes":
        lanes //= 2
    return {"current_link_speed": SPEEDS[generation], "current_link_width": lanes}


def _errors(
    device: PciDevice, *, corrected: dict[str, int], fatal: dict[str, int]
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
