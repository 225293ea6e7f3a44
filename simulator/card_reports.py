"""Kernel log messages about a faulty NIC, with their levels.

Texts are in the form of linux, drivers/pci/hotplug/pciehp_ctrl.c, drivers/pci/pcie/aer.c and the NICs'
drivers.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.conditions import Scenario
from simulator.machine import Machine, Port
from simulator.nic_models import CONNECTX7

ERROR, WARNING, INFO = 3, 4, 6


def card_reports(scenario: Scenario, parts: Machine) -> Iterator[tuple[int, str]]:
    """Yield levels and texts at the onset, in order."""
    tell = {"nic_lost": _lost, "pcie_degraded": _degraded}.get(scenario.spec.scenario)
    if tell:
        port = next(port for port in parts.ports if port.rail == scenario.spec.struck)
        path = next(device.path for device in parts.pci if device.address == port.pci_address)
        root, *_, above, _ = path.split("/")[4:]
        yield from tell(port, root, above)


def _lost(port: Port, root: str, above: str) -> Iterator[tuple[int, str]]:
    slot, card = 1 + (port.rail or 0), f"{port.nic.driver} {port.pci_address}"
    yield INFO, f"pcieport {above}: pciehp: Slot({slot}): Link Down"
    yield INFO, f"pcieport {above}: pciehp: Slot({slot}): Card not present"
    yield (
        ERROR,
        f"pcieport {root}: AER: Uncorrectable (Fatal) error message received from {above}",
    )
    yield (
        ERROR,
        (
            f"pcieport {above}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer,"
            " (Receiver ID)"
        ),
    )
    yield ERROR, f"pcieport {above}:    [ 5] SDES                   (First)"
    if port.nic is CONNECTX7:
        yield ERROR, f"{card}: poll_health:831:(pid 0): Fatal error 3 detected"
        yield ERROR, f"{card}: mlx5_health_try_recover:338:(pid 1211): handling bad device here"
    yield INFO, f"{card} {port.interface}: {port.nic.link_down}"


def _degraded(port: Port, root: str, above: str) -> Iterator[tuple[int, str]]:
    del above
    card = f"{port.nic.driver} {port.pci_address}"
    yield (
        WARNING,
        f"pcieport {root}: AER: Correctable error message received from {port.pci_address}",
    )
    yield (
        WARNING,
        (f"{card}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)"),
    )
    ids = f"[{port.nic.pci_vendor:04x}:{port.nic.pci_device:04x}]"
    yield WARNING, f"{card}:   device {ids} error status/mask=00000040/00000000"
    yield WARNING, f"{card}:    [ 6] BadTLP                "
