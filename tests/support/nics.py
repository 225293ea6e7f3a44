"""Network cards of several makers, as sysfs and netlink tell of them."""

from __future__ import annotations

from typing import Any

from support.machine import FakeHost

from agent.reader import Outcome
from railscope.frame import Event

NET = "/sys/class/net"
ADDRESS = "0000:3b:00.0"
SETTINGS, EVENT = "nic_settings", "nic_setting_changed"

DCB: dict[str, Any] = {
    "pfc": {
        "capacity": 8, "enabled": [3], "delay_bits": 7, "requests": [0] * 8, "indications": [0] * 8,
    },
    "ets": {
        "traffic_class": [1, 0, 2, 3, 4, 5, 6, 7],
        "bandwidth_percent": [25, 0, 0, 75, 0, 0, 0, 0],
        "algorithm": ["ets", "vendor", "vendor", "ets", "strict", "strict", "strict", "strict"],
    },
    "applications": [
        *({"selector": "dscp", "protocol": dscp, "priority": 3} for dscp in range(24, 32)),
        {"selector": "dscp", "protocol": 48, "priority": 6},
        {"selector": "ethertype", "protocol": 35093, "priority": 3},
    ],
    "buffer": {
        "of_priority": [0, 0, 0, 1, 0, 0, 0, 0],
        "size_bytes": [130_944, 114_944, 0, 0, 0, 0, 0, 0],
        "total_bytes": 262_016,
    },
    "maximum_rate_kilobits": [0] * 8,
    "dcbx": ["ieee", "host"],
}  # fmt: skip
PAUSE = {"autonegotiation": False, "receive": False, "transmit": False}
FEC = {"modes": ["RS"], "automatic": False, "active": "RS"}
RINGS = {
    "receive": 1024, "receive_limit": 8192, "transmit": 512, "transmit_limit": 8192,
}  # fmt: skip
LINK_MODES = {
    "speed_megabits": 400_000, "duplex": "full", "lanes": 4, "autonegotiation": True,
    "supported": ["100000baseCR4/Full", "400000baseCR4/Full", "Autoneg", "FIBRE", "RS"],
    "advertised": ["400000baseCR4/Full"], "peer": [],
}  # fmt: skip
CC_PARAMS = {"rp_ai_rate": 5, "rp_gd": 11, "np_cnp_dscp": 48, "np_cnp_prio": 6, "rp_max_rate": 0}


def add_nic(
    host: FakeHost,
    interface: str = "eth0",
    driver: str = "mlx5_core",
    address: str = ADDRESS,
    rdma_device: str = "",
) -> None:
    """Give a host a network card that has an MTU and a firmware and tells nothing else."""
    place = f"/sys/devices/pci0000:3a/{address}"
    host.links[f"{NET}/{interface}/device"] = place
    host.links[f"{place}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.files[f"/sys/bus/pci/drivers/{driver}/module"] = ""
    host.files |= {f"{NET}/{interface}/mtu": "4200\n", f"{NET}/{interface}/carrier": "1\n"}
    host.calls[f"ethtool.driver({interface})"] = {
        "driver": driver, "version": "", "firmware": "28.39.1002", "bus": address,
    }  # fmt: skip
    if rdma_device:
        host.files[f"{place}/infiniband/{rdma_device}/fw_ver"] = "28.39.1002"
        host.files[f"/sys/class/infiniband/{rdma_device}/ports/1/state"] = "4: ACTIVE"


def add_netlink(host: FakeHost, interface: str = "eth0", **answers: Any) -> None:
    """Have a card answer these questions."""
    for question, answer in answers.items():
        host.calls[f"netlink.{question}({interface})"] = answer


def add_everything(host: FakeHost, interface: str = "eth0") -> None:
    """Have a card answer all that netlink asks for settings."""
    add_netlink(host, interface, dcb=DCB, pause=PAUSE, fec=FEC, rings=RINGS, link_modes=LINK_MODES)


def facts(outcome: Outcome, kind: str = SETTINGS) -> dict[str, dict[str, str]]:
    """The facts of the entities of a kind, by interface."""
    assert outcome.frame is not None, outcome.problem
    return {e.key[0]: dict(e.facts) for e in outcome.frame.schema.entities if e.kind.name == kind}


def events(outcome: Outcome) -> list[Event]:
    """What happened."""
    return list(outcome.frame.events) if outcome.frame else []


def changes(outcome: Outcome) -> list[tuple[str, str, str, str]]:
    """Interface, setting, before and after of every change that was told."""
    return [
        (e.entity.key[0], e.facts["setting"], e.facts["before"], e.facts["after"])
        for e in events(outcome)
        if e.event_class.name == EVENT
    ]
