"""Available NIC models, as data: driver names, identities and kernel messages.

Sources: torvalds/linux drivers/net/ethernet and drivers/infiniband/hw of each driver; PCI ids of
pci-ids.ucw.cz. Firmware versions are plausible ones from the vendors' release notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LANES = 4
"""Lanes of every port: 400 Gb/s are four of 100, 200 four of 50, 100 four of 25."""

PCIE_BYTES_PER_LANE = {3: 985_000_000, 4: 1_969_000_000, 5: 3_938_000_000}
"""Bytes per second of a lane of a PCIe generation in one direction, after line coding."""

PCIE_GOODPUT = 0.85
"""Share available for data after packet headers, acknowledgements and credits."""


@dataclass(frozen=True, slots=True)
class NicModel:
    """NIC model, with one port.

    `interface_name` is formatted with the slot, `rdma_name` with the number among the driver's NICs, or
    PCI domain and bus. `loaded`, `link_up` and `link_down` are the driver's kernel log messages.
    """

    name: str
    driver: str
    pci_vendor: int
    pci_device: int
    firmware: str
    interface_firmware: str
    board: str
    hca_type: str
    interface_name: str
    rdma_name: str
    mac_prefix: str
    gigabits: int
    storage_gigabits: int
    loaded: str
    link_up: str = "Link up"
    link_down: str = "Link down"
    pcie_generation: int = 5
    pcie_lanes: int = 16

    @property
    def halved_pcie_bytes_per_second(self) -> float:
        """Bytes per second of the NIC's PCIe link in one direction at half its width or speed."""
        lane = PCIE_BYTES_PER_LANE[self.pcie_generation]
        return lane * self.pcie_lanes / 2 * PCIE_GOODPUT


CONNECTX7 = NicModel(
    name="ConnectX-7", driver="mlx5_core", pci_vendor=0x15B3, pci_device=0x1021,
    firmware="28.39.1002", interface_firmware="28.39.1002 (MT_0000000838)",
    board="MT_0000000838", hca_type="MT4129",
    interface_name="ens{slot}f0np0", rdma_name="mlx5_{number}", mac_prefix="a088c2",
    gigabits=400, storage_gigabits=200, loaded="firmware version: 28.39.1002",
)  # fmt: skip

THOR2 = NicModel(
    name="BCM57608", driver="bnxt_en", pci_vendor=0x14E4, pci_device=0x1760,
    firmware="231.0.162.0", interface_firmware="231.0.162.0/pkg 231.1.162.1",
    board="", hca_type="BCM57608",
    interface_name="ens{slot}np0", rdma_name="bnxt_re{number}", mac_prefix="bc97e1",
    gigabits=400, storage_gigabits=200,
    loaded="Broadcom BCM57608 Ethernet found at mem 2a0000000000",
    link_up="NIC Link is Up, 400000 Mbps (PAM4 112Gbps) full duplex, Flow control: none",
    link_down="NIC Link is Down",
)  # fmt: skip

E810 = NicModel(
    name="E810-C", driver="ice", pci_vendor=0x8086, pci_device=0x1592,
    firmware="1.71", interface_firmware="4.40 0x8001c967 1.3534.0",
    board="IRDMA Board ID", hca_type="IRDMA",
    interface_name="ens{slot}f0np0", rdma_name="roce{domain}p{bus}s0", mac_prefix="b49691",
    gigabits=100, storage_gigabits=100,
    loaded="The DDP package was successfully loaded: ICE OS Default Package version 1.3.36.0",
    link_up="NIC Link is up 100 Gbps Full Duplex, Requested FEC: RS-FEC, Negotiated FEC: RS-FEC,"
    " Autoneg Advertised: Off, Autoneg Negotiated: False, Flow Control: None",
    link_down="NIC Link is Down",
    pcie_generation=4,
)  # fmt: skip

_MIXED_RAILS = 4

NICS: Mapping[str, str] = MappingProxyType(
    {
        "cx7": "NVIDIA ConnectX-7 of 400 Gb/s (mlx5).",
        "bnxt": "Broadcom BCM57608 of 400 Gb/s (bnxt_en, bnxt_re).",
        "irdma": "Intel E810 of 100 Gb/s (ice, irdma).",
        "mixed": "ConnectX-7 on the first four rails, BCM57608 on the others.",
    }
)
"""NICs by name: description in one sentence."""

_MODELS = {"cx7": CONNECTX7, "bnxt": THOR2, "irdma": E810, "mixed": CONNECTX7}


def nic_of(nic: str, rail: int | None) -> NicModel:
    """Return the NIC model of a rail, or of storage, on a node with such NICs."""
    if nic == "mixed" and rail is not None and rail >= _MIXED_RAILS:
        return THOR2
    return _MODELS[nic]
