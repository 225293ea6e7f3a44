"""The inventory, compared with the devices that nodes report."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ExpectedDevices(msgspec.Struct, frozen=True):
    """Devices of one kind of a node; null is not known."""

    expected: int | None
    present: int | msgspec.UnsetType = msgspec.UNSET
    missing: int | msgspec.UnsetType = msgspec.UNSET
    unexpected: int | msgspec.UnsetType = msgspec.UNSET
    unknown: int | msgspec.UnsetType = msgspec.UNSET
    reason: str | None = None
    names: dict[str, list[str]] | None = None
    """Names of the devices by state: `present`, `gone`, `unknown`."""
    devices: dict[str, list[Mapping[str, str]]] | None = None
    """All names of these devices, in the same order."""


class ExpectedNode(msgspec.Struct, frozen=True):
    """A node of the inventory."""

    node: str
    state: str
    heard_ns: int | None = None
    """Time of its last report."""
    gpus: ExpectedDevices | None = None
    rdma_ports: ExpectedDevices | None = None


class GoneGpu(msgspec.Struct, frozen=True):
    """A GPU that its node no longer reports."""

    node: str
    gpu: str
    index: str
    pci_address: str
    seen_ns: int


class RetiredGpu(msgspec.Struct, frozen=True):
    """A GPU that was retired, and the node that reports it nevertheless."""

    gpu: str
    index: str
    pci_address: str
    from_ns: int
    to_ns: int | None
    reason: str
    reported_by: str | None


class Inventory(msgspec.Struct, frozen=True):
    """The compared inventory; `nodes` is null without one."""

    nodes: tuple[ExpectedNode, ...] | None
    timestamp_ns: int = 0
    gone_gpus: tuple[GoneGpu, ...] = ()
    retired_gpus: tuple[RetiredGpu, ...] = ()
    view: str = "inventory"
