"""What /sys/bus/pci/devices shows of the simulated machine."""

from __future__ import annotations

import errno

from railscope.capture import Json, Moment, failure
from railscope.simulator.machine import CPU_LISTS
from railscope.simulator.model import NodeModel
from railscope.simulator.pci_layout import PciDevice

SPEEDS = {2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
LOST_WIDTH = 63
"""The link width the kernel reads from a device whose registers are all ones."""

_CORRECTABLE = (
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF",
)  # fmt: skip
_UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP",
    "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked",
    "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip
_SURPRISE_DOWN = {"SDES": 1}


def show(model: NodeModel, into: Moment) -> None:
    """Put the PCI devices into a moment."""
    lost = {
        model.machine.gpus[index].pci_address
        for index, silicon in enumerate(model.gpus)
        if silicon.lost
    }
    above = {device.parent_address for device in model.machine.pci if device.address in lost}
    root = "/sys/bus/pci/devices"
    into.names[root] = [device.address for device in model.machine.pci]
    for device in model.machine.pci:
        folder = f"{root}/{device.address}"
        into.links[folder] = device.path
        into.links[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{device.driver}"
        files = _facts(device)
        files |= _link(device, lost=device.address in lost)
        files |= _errors(device, fatal=_SURPRISE_DOWN if device.address in above else {})
        for name, content in files.items():
            failed = isinstance(content, dict)
            into.files[f"{folder}/{name}"] = content if failed else f"{content}\n"


def _facts(device: PciDevice) -> dict[str, Json]:
    return {
        "vendor": f"0x{device.vendor:04x}",
        "device": f"0x{device.device:04x}",
        "class": f"0x{device.pci_class:06x}",
        "numa_node": device.numa_node,
        "local_cpulist": CPU_LISTS[device.numa_node],
    }


def _link(device: PciDevice, *, lost: bool) -> dict[str, Json]:
    """Describe the link of a device with the port above it, if it has one."""
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


def _errors(device: PciDevice, *, fatal: dict[str, int]) -> dict[str, Json]:
    if not device.generation:
        names = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
        return dict.fromkeys(names, failure(OSError(errno.ENOENT, "")))
    return {
        "aer_dev_correctable": _table(_CORRECTABLE, "TOTAL_ERR_COR", {}),
        "aer_dev_nonfatal": _table(_UNCORRECTABLE, "TOTAL_ERR_NONFATAL", {}),
        "aer_dev_fatal": _table(_UNCORRECTABLE, "TOTAL_ERR_FATAL", fatal),
    }


def _table(names: tuple[str, ...], total: str, counts: dict[str, int]) -> str:
    lines = [f"{name} {counts.get(name, 0)}" for name in names]
    return "\n".join([*lines, f"{total} {sum(counts.values())}"])
