"""What the kernel says of a network card in trouble: lines of its log, with their levels.

Texts are in the form of linux, drivers/pci/hotplug/pciehp_ctrl.c, drivers/pci/pcie/aer.c and the
cards' drivers.
"""

from __future__ import annotations

from collections.abc import Iterator

from railscope.simulator.conditions import Scenario
from railscope.simulator.machine import Machine, Port
from railscope.simulator.nic_models import CONNECTX7

ERROR, WARNING, INFO = 3, 4, 6


def card_reports(scenario: Scenario, parts: Machine) -> Iterator[tuple[int, str]]:
    """Levels and texts at the onset, in their order."""
    tell = {"nic_lost": _lost, "pcie_degraded": _degraded}.get(scenario.spec.scenario)
    if tell:
        port = next(port for port in parts.ports if port.rail == scenario.spec.struck)
        above = next(d.parent_address for d in parts.pci if d.address == port.pci_address)
        yield from tell(port, f"pcieport {above}", f"{port.nic.driver} {port.pci_address}")


def _lost(port: Port, above: str, card: str) -> Iterator[tuple[int, str]]:
    slot = 1 + (port.rail or 0)
    yield INFO, f"{above}: pciehp: Slot({slot}): Link Down"
    yield INFO, f"{above}: pciehp: Slot({slot}): Card not present"
    yield (
        ERROR,
        (
            f"{above}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
        ),
    )
    yield ERROR, f"{above}:    [ 5] SDES                   (First)"
    if port.nic is CONNECTX7:
        yield ERROR, f"{card}: poll_health:831:(pid 0): Fatal error 3 detected"
        yield ERROR, f"{card}: mlx5_health_try_recover:338:(pid 1211): handling bad device here"
    yield INFO, f"{card} {port.interface}: {port.nic.link_down}"


def _degraded(port: Port, above: str, card: str) -> Iterator[tuple[int, str]]:
    yield WARNING, f"{above}: AER: Correctable error message received from {port.pci_address}"
    yield (
        WARNING,
        f"{card}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)",
    )
    ids = f"[{port.nic.pci_vendor:04x}:{port.nic.pci_device:04x}]"
    yield WARNING, f"{card}:   device {ids} error status/mask=00000040/00000000"
    yield WARNING, f"{card}:    [ 6] BadTLP                "
