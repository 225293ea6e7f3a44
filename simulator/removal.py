"""Removed NICs: their entries vanish, and every access to them fails."""

from __future__ import annotations

import errno

from railscope.capture import SECTIONS, Moment, failure
from simulator.machine import Port
from simulator.model import NodeModel


class Removal:
    """Records the entries of each NIC in the first `Moment`, and makes them fail after its removal."""

    def __init__(self) -> None:
        self._asked: dict[str, list[tuple[str, str]]] = {}

    def show(self, model: NodeModel, into: Moment) -> None:
        """Make files, directories, links and calls of removed NICs fail."""
        if not self._asked:
            ports = [cable.port for cable in model.present_cables]
            self._asked = {port.pci_address: _keys(port, into) for port in ports}
        for cable in model.cables:
            if cable.removed:
                for section, key in self._asked[cable.port.pci_address]:
                    code = errno.ENODEV if section == "calls" else errno.ENOENT
                    getattr(into, section)[key] = failure(OSError(code, ""))


def _keys(port: Port, seen: Moment) -> list[tuple[str, str]]:
    """Sections and keys of a NIC's entries."""
    directories = tuple(
        f"{directory}/"
        for directory in (
            f"/sys/class/infiniband/{port.rdma_device}",
            f"/sys/class/net/{port.interface}",
            f"/sys/bus/pci/devices/{port.pci_address}",
        )
    )
    asked = (f"({port.interface})", f"({port.interface},", f"({port.rdma_device},")
    return [
        (section, key)
        for section in SECTIONS
        for key in getattr(seen, section)
        if f"{key}/".startswith(directories) or any(part in key for part in asked)
    ]
