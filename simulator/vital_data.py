"""Vital product data of NICs, as in the PCI file `vpd` and in the RDMA device.

Format: PCI Local Bus Specification 3.0, appendix I. For a ConnectX-7 function that manages NVSwitches it
contains SW_MNG, by which the NVIDIA Fabric Manager finds it.
"""

from __future__ import annotations

from railscope.capture import Moment
from simulator.model import NodeModel
from simulator.nic_models import CONNECTX7, NicModel

_NAME_TAG, _READ_ONLY_TAG, _END_TAG = 0x82, 0x90, 0x78
_BRIDGE_NAME, _BRIDGE_MARK = "Nvidia ConnectX-7 NVLink switch management", "SW_MNG"


def show_vital_data(model: NodeModel, into: Moment) -> None:
    """Add the data of all NICs to a `Moment`."""
    for cable in model.present_cables:
        port = cable.port
        _show(into, port.pci_address, port.rdma_device, _of_card(port.nic, port.mac))
    for bridge in model.machine.bridges:
        keywords = {"PN": "SSS7A28517", "SN": bridge.guid.replace(":", ""), "VA": _BRIDGE_MARK}
        data = _data(_BRIDGE_NAME, keywords)
        _show(into, bridge.pci_address, bridge.rdma_device, data)


def _show(into: Moment, pci_address: str, rdma_device: str, data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    into.files[f"/sys/bus/pci/devices/{pci_address}/vpd"] = text
    into.files[f"/sys/class/infiniband/{rdma_device}/device/vpd"] = text


def _of_card(nic: NicModel, mac: str) -> bytes:
    part = "MCX75310AAS-NEAT" if nic is CONNECTX7 else nic.name
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
