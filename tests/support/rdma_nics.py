"""Healthy RDMA NICs, as sysfs exposes them."""

from __future__ import annotations

from support.machine import FakeHost

INFINIBAND = "/sys/class/infiniband"


def add_nic(host: FakeHost, name: str = "mlx5_0", packets: str = "100") -> None:
    """Add an RDMA NIC with one active port and one counter to a host."""
    port = f"{INFINIBAND}/{name}/ports/1"
    host.files |= {
        f"{INFINIBAND}/{name}/fw_ver": "28.39.1002",
        f"{port}/state": "4: ACTIVE",
        f"{port}/phys_state": "5: LinkUp",
        f"{port}/rate": "400 Gb/sec (4X NDR)",
        f"{port}/counters/port_xmit_packets": packets,
    }
